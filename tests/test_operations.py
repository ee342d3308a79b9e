"""The table of everything has no hole, shows what fails, and lists what differs on purpose."""

import dataclasses
import importlib.util
import pkgutil
import re

import pytest

import minigrad as mg
import models
import nn
import nn.functional as F
from minigrad import Tensor, ops
from tests import differences, operations
from tests.minigrad.ops import test_elementwise
from tests.support import torch_or_skip


def test_every_public_name_has_a_row_and_every_row_a_case():
    rows = operations.all_rows()
    assert [row.names[0] for row in rows if not row.cases] == []
    names = {name for row in rows for name in row.names}
    assert {"ops.exp", "Tensor.exp", "mg.exp", "mg.cat", "F.relu", "F.layer_norm", "Tensor.__add__"} <= names


def test_the_table_of_one_name(capsys):
    torch_or_skip()
    assert operations.main(["logsumexp"]) == 0
    head, operation, method, *rest = capsys.readouterr().out.splitlines()
    assert operation.split()[:10] == ["ops.logsumexp", *"✓✓✓4✓✓✓✓", "–"]
    assert method.split()[:2] == ["Tensor.logsumexp", "mg.logsumexp"]
    assert "op_db" in head and "40/40" in method
    number = method.split()[-1]
    assert any(line.strip().startswith(f"{number} `logsumexp` of -inf alone: in PyTorch -inf") for line in rest)
    assert "2 rows, 0 of them with a hole or a failure" in rest


def test_a_name_that_is_none(capsys):
    with pytest.raises(SystemExit):
        operations.main(["expp"])
    assert "no operation, method or function has the name expp" in capsys.readouterr().err


def test_without_pytorch_it_says_what_to_install(capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    with pytest.raises(SystemExit) as exit_:
        operations.main(["exp"])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert re.search(r"missing, to compare with: torch( and expecttest)?; pip install -e '\.\[test,crosscheck\]'", said)


ALIASES = {"ops": "minigrad.ops", "mg": "minigrad", "Tensor": "minigrad.Tensor"}


def test_every_name_of_a_difference_is_there():
    homes = (Tensor, mg, F, nn, nn.Module, models)
    for what, *_ in differences.differences():
        for name in differences.names_in(what):
            dotted = re.sub(r"^(ops|mg|Tensor)\b", lambda start: ALIASES[start[0]], name)
            assert any(hasattr(home, name) for home in homes) or pkgutil.resolve_name(dotted), what


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`copy.copy` of a `Tensor.numpy()`", ["copy.copy", "Tensor.numpy"]),
        ("`x.sum(dim=(0, 1))`, `maximum(x, 0)`", ["Tensor.sum", "maximum"]),
        ("sum, `x[i] = v`, `x[0, :]`, `need_weights=True`", []),
    ],
)
def test_names_are_read_whole(text, names):
    assert differences.names_in(text) == names


def test_a_row_gets_the_differences_that_name_it(monkeypatch):
    texts = ["`copy.copy` of it", "`exp`", "`ops.copy`", "`mg.exp(array)`"]
    monkeypatch.setattr(operations, "differences", lambda: [[text, "", "", ""] for text in texts])
    rows = {row.names[0]: row for row in operations.all_rows()}
    operations.note_differences(list(rows.values()))
    assert [rows[name].rows for name in ("ops.copy", "ops.exp", "Tensor.exp", "ops.log")] == [[3], [2], [2, 4], []]


def test_a_hole_fails(capsys, monkeypatch):
    torch_or_skip()
    monkeypatch.setattr(operations, "_cases_of_operations", lambda: [])
    assert operations.main(["square"]) == 1
    printed = capsys.readouterr().out
    assert "HOLE" in printed
    assert "ops.square, hole: it has no Case" in printed


@pytest.mark.parametrize(
    ("wrong", "column", "text"),
    [
        (lambda x: ops.exp(x) * 1.001, "value", "the value: off by"),
        (lambda x: ops.astype(ops.exp(x), dtype="float64"), "dtype", "the dtype is float64"),
        (lambda x: x + ops.constant(ops.exp(x) - x), "gradient", "the gradient of operand 0"),
    ],
)
def test_a_fault_stands_in_its_column(capsys, monkeypatch, wrong, column, text):
    torch_or_skip()
    (case,) = [case for case in test_elementwise.CASES if case.name == "exp"]
    broken = dataclasses.replace(case, call=lambda lib, x: wrong(x) if lib is ops else lib.exp(x))
    monkeypatch.setattr(operations, "_cases_of_operations", lambda: [broken])
    assert operations.main(["exp"]) == 1
    head, line, *rest = capsys.readouterr().out.splitlines()
    place = head.index(column) + len(column) // 2
    assert "✗" in line[place - 2 : place + 2]
    assert any(text in line for line in rest)
