"""The pages' examples run: every python block of a page, in order, in one namespace, printing what the page says."""

import re
from pathlib import Path

import pytest

from tests.kernels.emulator.compiled import needs_compiler, why_nothing_compiles

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```\n(?P<printed>.*?)^```)?", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> list[re.Match[str]]:
    """The page's blocks of code, each with the bare block right after it: what the code prints."""
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def _plain(text: str) -> str:
    """The text with numbers to four digits, whose last digits differ between machines, and single spaces."""
    rounded = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.4g}", text)
    return re.sub(r"\s+(?=[],])", "", " ".join(rounded.split()))


PAGES = [page for page in sorted(DOCS.glob("*.md")) if blocks_of(page)]


@pytest.mark.cpu_only(reason="the pages show what is printed on a CPU")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what it writes
    text = page.read_text(encoding="utf-8")
    if "EmulatedModule" in text and (reason := why_nothing_compiles()):
        pytest.skip(reason)
    names = {"__name__": page.stem}
    for block in blocks_of(page):
        line = text[: block.start("code")].count("\n")  # so that an error names the page's own line
        exec(compile("\n" * line + block["code"], page.name, "exec"), names)
        printed = capsys.readouterr().out
        if block["printed"] is not None:
            assert _plain(printed) == _plain(block["printed"]), f"{page.name}, the block at line {line + 1}: {printed}"


def test_the_pages_are_there():
    assert {"adding-an-op", "kernels", "studying-gradients", "tiled-attention"} <= {page.stem for page in PAGES}


@pytest.mark.parametrize("name", ["adding-an-op", "studying-gradients"])
def test_blocks_that_print_say_what(name):
    """Those with a `print` in them: else nothing holds the page to what it says."""
    blocks = blocks_of(DOCS / f"{name}.md")
    assert sum(block["printed"] is not None for block in blocks) >= 4
    assert [block["code"] for block in blocks if "print(" in block["code"] and block["printed"] is None] == []


# ---- kernels.md, tiled-attention.md ----------------------------------------------------------------------------------


@pytest.mark.cpu_only(reason="the emulator runs kernels on arrays of a CPU")
@needs_compiler
def test_a_first_kernel_is_written_run_and_differentiated_in_under_60_lines(capsys):
    """With the page's checks of both; blank lines, comments and docstrings are not counted."""
    text = (DOCS / "kernels.md").read_text(encoding="utf-8")
    sections = [text.index(f"\n## {number}. ") for number in (1, 2, 3)]
    blocks = blocks_of(DOCS / "kernels.md")
    first_of = [next(b for b in blocks if b.start() > section) for section in sections[:2]]
    assert first_of[-1].end() < sections[2]
    program = "".join(block["code"] for block in first_of)
    lines = [line for line in program.splitlines() if not re.fullmatch(r'\s*(#(?!define).*|//.*|"""[^"]+"""|)', line)]
    assert len(lines) < 60
    exec(compile(program, "kernels.md", "exec"), {"__name__": "kernels"})  # nothing else of the page is needed
    printed = [_plain(block["printed"]) for block in first_of]
    assert _plain(capsys.readouterr().out) == " ".join(printed) and all(text.startswith("True") for text in printed)


def test_what_tiled_attention_names_is_there():
    """The functions and variables that it says are in the sources of kernels/."""
    text = (DOCS / "tiled-attention.md").read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text[text.index("\n## 6. ") :], flags=re.MULTILINE | re.DOTALL)
    names = {name for name in re.findall(r"`([^`]+)`", text) if re.fullmatch(r"\w+", name)}
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted((DOCS.parent / "kernels").glob("*.cu*")))
    assert len(names) > 30
    assert {name for name in names if not re.search(rf"\b{name}\b", sources)} == set()
