"""bfloat16 tensors: made, cast, promoted, computed in float32 and rounded once; beside PyTorch, and without ml_dtypes.

Each operation of the table is tried in bfloat16 by `tests/minigrad/ops`.
"""

import subprocess
import sys

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad import op, ops
from tests.support import assert_close, torch_or_skip


def leaf(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return mg.Tensor(values, dtype=mg.bfloat16, requires_grad=True)


def test_made_cast_and_shown():
    for x in (mg.zeros(2, dtype="bfloat16"), mg.Tensor([0.0, 0.0]).bfloat16(), mg.Tensor([0.0, 0.0]).to(mg.bfloat16)):
        assert x.dtype == mg.bfloat16 and x.is_floating_point() and x.tolist() == [0.0, 0.0]
        assert x.bfloat16() is x and x.float().dtype == np.float32 and x.half().dtype == np.float16
    assert repr(mg.Tensor([1.0, 2.5], dtype=mg.bfloat16)).startswith("tensor([1, 2.5], dtype=bfloat16")
    assert mg.arange(3, dtype=mg.bfloat16).tolist() == [0, 1, 2] and mg.eye(2, dtype=mg.bfloat16).dtype == "bfloat16"
    assert mg.Tensor([3.14159265], dtype=mg.bfloat16).item() == 3.140625  # of eight bits
    assert mg.full((2,), 0.1, dtype="bfloat16").tolist() == [0.10009765625] * 2
    assert mg.zeros_like(leaf(2)).dtype == "bfloat16"


def test_drawn_numbers_are_those_of_float32_rounded():
    mg.manual_seed(3)
    x = mg.rand(1000, dtype=mg.bfloat16)
    mg.manual_seed(3)
    y = mg.rand(1000)
    assert x.dtype == "bfloat16" and x.max().item() < 1 and abs(x.float() - y).max().item() < 2**-8
    with pytest.raises(ValueError, match="bfloat16 cannot hold the integers from 0 to below 1000"):
        mg.randint(0, 1000, (2,), dtype=mg.bfloat16)


def test_numbers_beyond_its_range_are_refused():
    x = mg.zeros(2, dtype=mg.bfloat16)
    with pytest.raises(ValueError, match=r"1e\+39 is no value of bfloat16, which are from -3\.3895313\d+e\+38 to"):
        x.masked_fill(x == 0, 1e39)
    assert x.tolist() == [0, 0]


@pytest.mark.parametrize("other", ["float16", "bfloat16", "float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_promotion_is_pytorchs(other, shape):
    torch = torch_or_skip()
    expected = (torch.ones(2, dtype=torch.bfloat16) * torch.ones(shape, dtype=getattr(torch, other))).dtype
    x, y = mg.ones(2, dtype=mg.bfloat16), mg.ones(*shape, dtype=other)
    assert f"torch.{(x * y).dtype}" == f"torch.{(y * x).dtype}" == str(expected)


def test_numbers_do_not_widen_it():
    x = leaf(3)
    for y in (x * 2.0, 2 * x, x + np.float64(1), x**2, x / 3, 1 - x, x.clamp(min=0.5), mg.where(x > 0, x, 0.0)):
        assert y.dtype == "bfloat16"


def test_numbers_are_rounded_as_the_tensor_is():
    """Else x == 0.1 would be false where x was made of 0.1, and ties would be none."""
    torch = torch_or_skip()
    values = [0.1, 0.7, 256.0]
    for call in (
        lambda x: x == 0.1, lambda x: x > 0.1, lambda x: x == 257, lambda x: x - 0.7, lambda x: 0.7 - x,
        lambda x: x + 257, lambda x: x.clamp(max=0.1), lambda x: x * 0.1, lambda x: x / 0.3, lambda x: x**0.3,
    ):  # fmt: skip
        x, theirs = leaf(3).detach(), torch.tensor(values).bfloat16()
        x[:] = values
        x.requires_grad_()
        theirs.requires_grad_()
        y, expected = call(x), call(theirs)
        assert str(expected.dtype) == f"torch.{y.dtype}"
        np.testing.assert_array_equal(y.float().detach().numpy(), expected.float().detach().numpy())
        if y.requires_grad:
            y.sum().backward()
            expected.sum().backward()
            assert_close(x.grad, theirs.grad, 8e-3)
    x = mg.Tensor([0.1], dtype=mg.bfloat16, requires_grad=True)
    mg.maximum(x, 0.1).backward()
    assert x.grad.item() == 0.5


def test_a_condition_in_bfloat16_says_nothing_about_the_values():
    y = mg.where(mg.Tensor([1.0, 0.0], dtype=mg.bfloat16), mg.Tensor([0.123456, 2.0]), mg.Tensor([1.0, 3.14159265]))
    assert y.dtype == np.float32 and y.tolist() == [np.float32(0.123456), np.float32(3.14159265)]


def test_infinities_become_its_own_largest_numbers():
    x = mg.Tensor([np.inf, -np.inf, np.nan, 2.0], dtype=mg.bfloat16, requires_grad=True)
    y = x.nan_to_num()
    assert y.dtype == "bfloat16" and y.tolist() == [3.3895313892515355e38, -3.3895313892515355e38, 0, 2]
    y.backward([1.0, 1.0, 1.0, 1.0])
    assert x.grad.tolist() == [0, 0, 0, 1]


def test_integers_of_any_size_are_written():
    x = mg.zeros(2, dtype=mg.bfloat16)
    x[0] = 10**30
    assert x.tolist() == [float(np.float32(1e30).astype(mg.bfloat16)), 0]
    with pytest.raises(OverflowError, match=r"x\[i\] = v: int too large to convert to float"):
        x[0] = 10**400


def test_an_operation_rounds_once():
    """The mean of 300 ones is 1, which eight bits cannot count up to; e^x of PyTorch is that of float32, rounded."""
    assert mg.ones(300, dtype=mg.bfloat16).mean().item() == 1
    assert mg.ones(300, 2, dtype=mg.bfloat16).cumsum(0)[-1].tolist() == [300, 300]
    torch = torch_or_skip()
    x = leaf(1000)
    theirs = torch.tensor(x.float().numpy()).bfloat16()
    for name in ("exp", "tanh", "sigmoid"):
        np.testing.assert_array_equal(getattr(x, name)().numpy(), getattr(theirs, name)().float().numpy())
    for name in ("gelu", "silu"):
        assert_close(getattr(F, name)(x), getattr(torch.nn.functional, name)(theirs), 1e-3)


def test_what_moves_numbers_makes_no_copy():
    x = leaf(4, 6)
    for y in (x.reshape(6, 4), x.T, x[1:], x.unsqueeze(0), x.expand(2, 4, 6), x.split(2)[0], x.diagonal()):
        assert y.dtype == "bfloat16" and y.data.base is not None and y.memory is x.memory


def test_a_body_gets_float32_and_its_gradient_too():
    seen = []

    @op
    def doubled(x):
        seen.append(x.dtype)

        def pullback(g):
            seen.append(g.dtype)
            return g * 2

        return x * 2, pullback

    @op
    def halves(x):
        return (x[:1], x[1:]), lambda g: ops.concatenate([seen.append(part.dtype) or part for part in g])

    x = leaf(4)
    first, second = halves(doubled(x))
    assert first.dtype == second.dtype == "bfloat16"
    (first.sum() + 3 * second.sum()).backward()
    assert x.grad.dtype == "bfloat16" and x.grad.tolist() == [2, 6, 6, 6]
    assert {str(dtype) for dtype in seen} == {"float32"} and len(seen) == 4


def test_gradients_of_gradients():
    x = leaf(5)
    (g,) = mg.grad((x**3 + F.softmax(x, -1) * x).sum(), [x], create_graph=True)
    (h,) = mg.grad((g * g).sum(), [x])
    z = mg.Tensor(x.float().numpy(), dtype=np.float64, requires_grad=True)
    (true_g,) = mg.grad((z**3 + F.softmax(z, -1) * z).sum(), [z], create_graph=True)
    (true_h,) = mg.grad((true_g * true_g).sum(), [z])
    assert g.dtype == h.dtype == "bfloat16"
    assert_close(g, true_g, 3e-2)
    assert_close(h, true_h, 3e-2)


def test_a_layer_in_bfloat16():
    mg.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 3))
    exact = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 3))
    exact.load_state_dict(layers.state_dict())
    layers.to(mg.bfloat16), layers.eval(), exact.eval()
    x = mg.randn(7, 6)
    loss, true_loss = (F.cross_entropy(m(y), mg.zeros(7, dtype=int)) for m, y in ((layers, x.bfloat16()), (exact, x)))
    loss.backward(), true_loss.backward()
    assert loss.dtype == "bfloat16"
    assert_close(loss, true_loss, 3e-2)
    for (name, ours), theirs in zip(layers.named_parameters(), exact.parameters(), strict=True):
        assert ours.grad.dtype == "bfloat16"
        assert_close(ours.grad, theirs.grad, 6e-2, name)


def test_rows_taken_many_times_gather_their_gradient_in_float32():
    weight = mg.zeros(2, 1, dtype=mg.bfloat16, requires_grad=True)
    F.embedding(mg.zeros(300, dtype=int), weight).sum().backward()
    assert weight.grad.tolist() == [[300], [0]]


def test_without_ml_dtypes_all_else_works_and_the_error_says_what_to_install():
    code = """
import sys
sys.modules["ml_dtypes"] = None
import minigrad as mg
assert mg.ones(2).sum().item() == 2
with mg.autocast():
    assert (mg.ones(2, 2) @ mg.ones(2, 2)).dtype == "float16"
for make in (lambda: mg.zeros(2, dtype=mg.bfloat16), lambda: mg.ones(2).bfloat16(), lambda: mg.ones(2).to("bfloat16"),
             lambda: mg.autocast("bfloat16")):
    try:
        make()
    except TypeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["bfloat16 needs the package ml_dtypes: pip install ml_dtypes"] * 4
