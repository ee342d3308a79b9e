"""Drawings: DOT and SVG show every node, edge and module, whatever the names are."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import minigrad as mg
import nn
from tests.support import leaf

SVG = "{http://www.w3.org/2000/svg}"
AWKWARD = 'a "quoted" \\ <tag> & more\nlines'


def perceptron():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with mg.tracing(values=True):
        loss = (model(mg.ones(5, 3)) * 0.5).sum()
        loss.backward(retain_graph=True)
    return mg.graph(loss, model)


def elements(svg: str, kind: str, name: str) -> list:
    return [e for e in ElementTree.fromstring(svg).iter(f"{SVG}{kind}") if e.get("class") == name]


def test_an_svg_shows_every_node_edge_and_module():
    graph = perceptron()
    svg = graph.to_svg()
    for kind in ("operation", "leaf", "constant"):
        assert len(elements(svg, "g", kind)) == sum(node.kind == kind for node in graph.nodes) > 0
    assert len(elements(svg, "path", "edge")) == len(graph.edges)
    assert len(elements(svg, "rect", "call")) == 3
    texts = {text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert {"Sequential", "0: Linear", "1: Linear", "weight", "4×3", "multiply", "5×2", "number"} <= texts


def test_what_else_is_known_is_in_the_titles():
    titles = [title.text for title in ElementTree.fromstring(perceptron().to_svg()).iter(f"{SVG}title")]
    (multiply,) = [title for title in titles if title.startswith("multiply")]
    assert re.fullmatch(
        r"multiply: \(5, 2\) float32\ny = 0\.5\nmade at .*test_draw\.py:\d+\n"
        r"norm of the value [\d.]+\nnorm of the gradient 3\.162",
        multiply,
    )
    assert "(5, 2)\nnorm of the gradient 1.581" in titles  # along an edge
    assert any("\nin 1" in title for title in titles)


def test_the_rectangles_and_arrows_of_an_svg_lie_within_it():
    root = ElementTree.fromstring(perceptron().to_svg())
    width, height = float(root.get("width")), float(root.get("height"))
    for rectangle in root.iter(f"{SVG}rect"):
        x, y = float(rectangle.get("x", 0)), float(rectangle.get("y", 0))
        assert x >= 0 and x + float(rectangle.get("width")) <= width + 1
        assert y >= 0 and y + float(rectangle.get("height")) <= height + 1
    for path in root.iter(f"{SVG}path"):
        if path.get("class") == "edge":
            assert re.fullmatch(r"M[\d.]+,[\d.]+ V[\d.]+( C[\d., ]+ V[\d.]+)+", path.get("d"))


def test_awkward_names_are_escaped():
    x = leaf([1.0])
    graph = mg.graph(x * 2, {AWKWARD: x})
    texts = [text.text for text in ElementTree.fromstring(graph.to_svg()).iter(f"{SVG}text")]
    assert AWKWARD in texts
    assert r'label="a \"quoted\" \\ <tag> & more\nlines\n1"' in graph.to_dot()


def statements(dot: str) -> list[str]:
    """The lines of a drawing in Graphviz's language, each of a form that the language has."""
    lines = dot.splitlines()
    value = r'(?:"(?:[^"\\]|\\.)*"|[\w.]+)'
    attributes = rf"\[\w+={value}(?:, \w+={value})*\]"
    forms = [
        r"digraph \w+ \{",
        r"subgraph cluster_\d+ \{",
        r"\}",
        rf"label={value};",
        rf"(?:n\d+(?: -> n\d+)?|node|edge|graph) {attributes};",
    ]
    for line in lines:
        assert any(re.fullmatch(form, line.strip()) for form in forms), line
    return lines


def test_characters_that_no_file_holds_are_shown_as_escapes(tmp_path):
    x = leaf([1.0])
    graph = mg.graph(x * 2, {"a\x00b\x1b\ud800\uffff": x})
    shown = r"a\x00b\x1b\ud800\uffff"
    assert shown in {text.text for text in ElementTree.fromstring(graph.to_svg()).iter(f"{SVG}text")}
    assert shown.replace("\\", "\\\\") in graph.to_dot()
    for name in ("graph.svg", "graph.dot"):
        graph.save(tmp_path / name)
        assert "\0" not in (tmp_path / name).read_text(encoding="utf-8")


def test_dot_shows_every_node_edge_and_module():
    graph = perceptron()
    lines = statements(graph.to_dot())
    depth, clusters = 0, []
    for line in lines:
        if "subgraph" in line:
            clusters.append(depth)
        depth += line.endswith("{") - (line.strip() == "}")
    assert depth == 0
    assert sorted(clusters) == [1, 2, 2]  # two within one within the drawing
    text = "\n".join(lines)
    assert len(re.findall(r"^\s*n\d+ \[", text, re.MULTILINE)) == len(graph.nodes)
    assert len(re.findall(r"n\d+ -> n\d+ \[", text)) == len(graph.edges)
    assert 'label="Sequential"' in text and 'label="0: Linear"' in text and 'label="5×3"' in text
    statements(mg.graph(leaf([1.0]) * 2, {AWKWARD: leaf([1.0])}).to_dot())


def test_a_node_of_a_collapsed_module_says_its_class():
    graph = perceptron().collapse(1)
    assert ">0: Linear<" in graph.to_svg()
    assert len(elements(graph.to_svg(), "g", "module")) == 2
    assert 'label="0: Linear\\n5×4"' in graph.to_dot()
    assert ">Sequential<" in perceptron().collapse(0).to_svg()


def test_an_svg_has_a_limit():
    x = leaf([1.0])
    for _ in range(2000):
        x = x + 1.0
    graph = mg.graph(x)
    with pytest.raises(ValueError, match=r"a drawing of 2001 nodes could not be read \(at most 2000\)"):
        graph.to_svg()
    assert graph._repr_svg_() is None
    assert mg.graph(leaf([1.0]) * 2)._repr_svg_().startswith("<svg")


@pytest.mark.parametrize(("name", "beginning"), [("a.svg", "<svg"), ("a.dot", "digraph")])
def test_save(tmp_path, name, beginning):
    graph = mg.graph(leaf(np.ones((2, 3))) * 2)
    graph.save(tmp_path / name)
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.startswith(beginning) and "2×3" in text
    with pytest.raises(ValueError, match=r"save: the name must end in \.svg or \.dot, got 'a\.png'"):
        graph.save(tmp_path / "a.png")
