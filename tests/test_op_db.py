"""PyTorch's own samples of each operator that we have under its name pass; `python -m tests.operations` counts them."""

import pytest

import nn.functional as F
from minigrad import Tensor, ops
from tests import op_db
from tests.differences import differences

ENTRIES = op_db.database()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.full_name for entry in ENTRIES])
def test_every_sample_is_pytorchs(entry):
    with F.attention_room("fused"):  # the kernels, which have roundings of their own, are held against float64
        outcome = op_db.run(entry)
    shown = "\n".join(f"{sample}: {wrong}" for sample, wrong in outcome.failures[:5])
    assert not outcome.failures, f"{outcome.passed} of {outcome.tried} pass\n{shown}"


def test_most_samples_are_tried():
    """A list of reasons could come to hide everything: of sixty operators at least, nothing is left out."""
    whole = [entry.name for entry in ENTRIES if not any(op_db.reasons(entry))]
    assert len(whole) > 60
    assert {"exp", "softmax", "matmul", "sum", "where"} <= set(whole)


def test_every_difference_is_a_row_of_the_page():
    rows = {what for what, *_ in differences()}
    assert {difference.row for difference in op_db.DIFFERENCES} <= rows


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda x: ops.exp(x) * 1.001, "the value: off by"),
        (lambda x: ops.exp(x).detach(), "requires_grad False"),
        (lambda x: ops.exp(x).double(), "float64, expected torch.float32"),
        (lambda x: x + ops.constant(ops.exp(x) - x), "the gradient: off by"),
        (lambda x: ops.exp(x)[..., None], "shape"),
    ],
)
def test_a_fault_is_seen(monkeypatch, wrong, text):
    monkeypatch.setattr(Tensor, "exp", wrong)
    (entry,) = [entry for entry in ENTRIES if entry.name == "exp"]
    assert any(text in what for _, what in op_db.run(entry).failures)


def test_what_must_be_refused_and_is_not_is_seen(monkeypatch):
    monkeypatch.setattr(Tensor, "dot", lambda x, y: ops.sum(x))
    (entry,) = [entry for entry in ENTRIES if entry.name == "dot"]
    assert any("where PyTorch raises" in wrong for _, wrong in op_db.run(entry).failures)
