"""Writing in place: values, dtypes and shapes beside PyTorch's, who may be written, and that graphs notice.

What graphs notice of every other kind of write is in test_autograd_versions.py.
"""

import numpy as np
import pytest

import minigrad as mg
from minigrad import DeviceError, Tensor
from tests.cupy_standin import installed
from tests.support import assert_close, leaf, torch_or_skip

WRITES = {
    "add_": lambda x, y: x.add_(y),
    "sub_": lambda x, y: x.sub_(y),
    "mul_": lambda x, y: x.mul_(y),
    "div_": lambda x, y: x.div_(y),
    "copy_": lambda x, y: x.copy_(y),
    "add_ alpha": lambda x, y: x.add_(y, alpha=2),
    "sub_ alpha": lambda x, y: x.sub_(y, alpha=0.5),
    "fill_": lambda x, y: x.fill_(2.5),
    "zero_": lambda x, y: x.zero_(),
}
each_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
NAMES = ["bool", "uint8", "int32", "int64", "float16", "float32", "float64"]


# ---- values, dtypes, shapes ------------------------------------------------------------------------------------------


@each_write
@pytest.mark.parametrize("shape", [(2, 3), (3,), (1, 3), (2, 1), (), (1, 1)])
def test_values_are_pytorchs_and_the_memory_stays_the_same(write, shape):
    torch = torch_or_skip()
    rng = np.random.default_rng(0)
    x, y = rng.uniform(1, 2, (2, 3)).astype(np.float32), rng.uniform(1, 2, shape).astype(np.float32)
    ours, theirs = Tensor(x), torch.tensor(x)
    data = ours.data
    assert write(ours, Tensor(y)) is ours
    write(theirs, torch.tensor(y))
    assert ours.data is data
    assert (ours.dtype, ours.is_leaf, ours.requires_grad) == (np.float32, True, False)
    assert_close(ours, theirs, 1e-6)


@each_write
@pytest.mark.parametrize("other", NAMES)
@pytest.mark.parametrize("own", NAMES)
def test_the_dtype_is_kept_or_the_result_does_not_fit_as_in_pytorch(write, own, other):
    torch = torch_or_skip()
    if own == other == "bool" and write is WRITES["add_ alpha"]:
        return  # PyTorch takes 2 True for True
    for shape in ((2,), ()):
        values = np.array([1, 3], other) if shape else np.array(3, other)
        ours, theirs = Tensor(np.array([2, 1], own)), torch.tensor(np.array([2, 1], own))
        try:
            write(theirs, torch.tensor(values))
        except RuntimeError as error:
            if "Subtraction" in str(error):
                continue  # PyTorch takes no boolean from or to anything
            with pytest.raises(
                RuntimeError, match=r"_: result type \w+ can't be cast to \w+, the dtype of this tensor"
            ):
                write(ours, Tensor(values))
            assert ours.tolist() == np.array([2, 1], own).tolist()
        else:
            write(ours, Tensor(values))
            assert str(theirs.dtype) == f"torch.{ours.dtype}" == f"torch.{own}"
            assert_close(ours, theirs, 1e-3 if "float16" in (own, other) else 1e-6)


@pytest.mark.parametrize(
    "write", [lambda x: x.add_(1.5), lambda x: x.mul_(0.5), lambda x: x.div_(2), lambda x: x.sub_(1, alpha=2.5)]
)
def test_fractions_do_not_fit_into_integers(write):
    x = Tensor([1, 2])
    with pytest.raises(RuntimeError, match="result type float32 can't be cast to int64, the dtype of this tensor"):
        write(x)
    assert (x.tolist(), x.dtype) == ([1, 2], np.int64)


def test_numbers_and_arrays_are_values_too():
    x = Tensor([1.0, 2.0])
    assert x.add_(1).mul_(mg.Tensor([2.0, 3.0])).sub_(np.float64(1)).div_(2).tolist() == [1.5, 4]
    assert x.copy_([5, 6]).tolist() == [5, 6]
    assert x.copy_(range(2)).fill_(np.float32(3)).tolist() == [3, 3]
    assert x.fill_(Tensor(4)).tolist() == [4, 4]
    assert x.dtype == np.float32
    assert Tensor([1, 2]).fill_(2.5).tolist() == [2, 2]
    assert Tensor(1.0).add_(2).item() == 3
    assert Tensor(np.zeros((0, 2), np.float32)).add_(1).shape == (0, 2)


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_", "copy_"])
@pytest.mark.parametrize("shape", [(3, 2), (3,), (1, 2), (0,), (2, 2)])
def test_values_broadcast_into_the_tensor_and_not_the_other_way_round(name, shape):
    torch = torch_or_skip()
    x = Tensor([1.0, 2.0])
    with pytest.raises(ValueError) as error:
        getattr(x, name)(mg.ones(shape))
    assert str(error.value) == f"{name}: a value of shape {shape} does not broadcast to this tensor's shape (2,)"
    with pytest.raises(RuntimeError):
        getattr(torch.tensor([1.0, 2.0]), name)(torch.ones(shape))
    assert x.tolist() == [1, 2]


def test_one_number_fills_and_no_more():
    with pytest.raises(ValueError, match=r"fill_: takes a number or a 0-d tensor, got shape \(2,\)"):
        Tensor([1.0, 2.0]).fill_(Tensor([1.0, 2.0]))


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_", "copy_"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_value_that_overlaps_with_the_tensor(name, device):
    values = np.arange(2.0, 11.0).reshape(3, 3)
    for view in (lambda x: x[::-1], lambda x: x.T, lambda x: x, lambda x: x[1], lambda x: x[:, :1], lambda x: x[0, 0]):
        with installed():
            x, y = Tensor(values, device=device), Tensor(values, device=device)
            getattr(x, name)(view(x))
            getattr(y, name)(view(y).clone())
            assert x.tolist() == y.tolist() != values.tolist() or (name == "copy_" and view(x).shape == (3, 3))
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    x[1:].copy_(x[:-1])
    assert x.tolist() == [1, 1, 2, 3]
    x[1:] = x[:-1]
    assert x.tolist() == [1, 1, 1, 2]


def test_a_write_through_a_view_arrives():
    x = mg.zeros(2, 3)
    x[0].add_(1)
    x.T[2].fill_(5)
    x.view(6)[3:].sub_(1, alpha=2)
    assert x.tolist() == [[1, 1, 5], [-2, -2, 3]]


# ---- who may be written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITES)
def test_what_requires_grad_is_written_only_if_it_is_a_leaf_within_no_grad(name):
    write, x = WRITES[name], leaf([1.0, 2.0])
    y = x * 1.0
    with pytest.raises(RuntimeError, match=f"{name.split()[0]}: this tensor requires grad, so its values are not"):
        write(x, 3.0)
    for result in (y, y[:1]):
        with mg.no_grad() if result is y else mg.enable_grad(), pytest.raises(RuntimeError, match="requires grad"):
            write(result, 3.0)
    assert (x.tolist(), y.tolist()) == ([1, 2], [1, 2])
    with mg.no_grad():
        assert write(x, 3.0) is x
    assert (x.requires_grad, x.is_leaf) == (True, True)
    assert x.tolist() != [1, 2]


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_", "copy_"])
def test_a_value_that_requires_grad_would_lose_it(name):
    x = Tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match=f"{name}: the value requires grad, and writing it here would lose"):
        getattr(x, name)(leaf([3.0, 4.0]))
    with mg.no_grad():
        getattr(x, name)(leaf([3.0, 4.0]))
    assert (x.requires_grad, x.node) == (False, None)


@each_write
def test_a_graph_notices(write):
    x, constant = leaf([1.0, 2.0]), Tensor([3.0, 4.0], dtype=np.float64)
    of_constant, of_leaf = (x * constant).sum(), (x * x).sum()
    write(constant, 2.0)
    with pytest.raises(RuntimeError, match=r"multiply: its input 1 \(of shape \(2,\)\) was changed in place"):
        of_constant.backward()
    with mg.no_grad():
        write(x, 2.0)
    with pytest.raises(RuntimeError, match="was changed in place"):
        of_leaf.backward()


def test_a_failed_write_is_no_write():
    x, constant = leaf([1.0, 2.0]), Tensor([3, 4])
    y = (x * constant).sum()
    for failing in (lambda: constant.add_(0.5), lambda: constant.copy_([1, 2, 3]), lambda: constant.add_("a")):
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            failing()
    y.backward()
    assert x.grad.tolist() == [3, 4]


@each_write
def test_an_expanded_view_and_read_only_memory_are_not_written(write):
    with pytest.raises(
        RuntimeError, match=r"this tensor of shape \(3, 2\) is an expanded view; write to a \.clone\(\)"
    ):
        write(mg.ones(2).expand(3, 2), 2.0)
    diagonal = mg.from_dlpack(np.diagonal(np.eye(3)))
    with pytest.raises(RuntimeError, match=r"memory of this tensor is for reading only .*; write to a \.clone\(\)"):
        write(diagonal, 2.0)
    write(diagonal.clone(), 2.0)


def test_a_value_on_another_device():
    with installed():
        x, on_cpu = mg.ones(2, device="cuda"), mg.ones(2, device="cpu")
        for write in (lambda: x.copy_(on_cpu), lambda: x.add_(on_cpu), lambda: x.fill_(on_cpu[0])):
            with pytest.raises(DeviceError, match="on cpu"):
                write()
        assert x.add_(mg.ones(2, device="cuda"), alpha=2).fill_(7).device == "cuda:0"


@pytest.mark.parametrize("name", ["add_", "mul_", "copy_"])
def test_other_things_are_no_values(name):
    for value in ("a", "1.5", None, object(), 1j, np.complex64(1), ["1", "2"], [None, 1]):
        with pytest.raises(TypeError):
            getattr(Tensor([1.0, 2.0]), name)(value)
    for value in ("1.5", None, 1j, [None, 1], [1j, 2]):
        with pytest.raises(TypeError, match="a tensor holds floats, integers or booleans, not"):
            Tensor([1.0, 2.0]).copy_(value)
        with pytest.raises(TypeError, match=r"x\[i\] = v: a tensor holds floats"):
            Tensor([1.0, 2.0])[...] = value


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lists_and_numbers_are_written_on_every_device(device):
    with installed():
        x = mg.zeros(2, 2, device=device)
        x[0] = [1, 2.5]
        x[1, 0] = np.float64(3)
        x[1, 1] = True
        assert x.tolist() == [[1, 2.5], [3, 1]]
        assert x.copy_([[5], [6]]).tolist() == [[5, 5], [6, 6]]


def test_methods_with_an_underscore_that_there_are_not():
    for name in ("relu_", "exp_", "clamp_"):
        with pytest.raises(AttributeError, match=name):
            getattr(Tensor([1.0]), name)


def test_a_number_that_the_dtype_does_not_hold_fills_nothing():
    for dtype, value in (("float16", 1e9), ("float32", np.float64(-1e39)), ("int8", 128), ("uint8", np.nan)):
        x = mg.ones(2, dtype=dtype)
        with pytest.raises(ValueError, match=rf"fill_: .* is no value of {dtype}, which are from .* to "):
            x.fill_(value)
        assert x.tolist() == [1, 1]
    assert mg.ones(2, dtype="float16").fill_(-np.inf).tolist() == [-np.inf] * 2


def test_a_factor_of_add_and_sub_is_a_number():
    x = mg.ones(2)
    for write in (x.add_, x.sub_):
        with pytest.raises(TypeError, match=r"(add|sub)_: alpha must be a number, got a tensor that requires grad"):
            write(1, alpha=leaf(2.0))
        with pytest.raises(TypeError, match=r"(add|sub)_: alpha must be a number, got Tensor"):
            write(1, alpha=mg.ones(2))
    assert x.add_(1, alpha=Tensor(2.0)).tolist() == [3, 3]


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_of_hundreds_of_digits_is_not_printed_whole(digits):
    with pytest.raises(ValueError, match=r"fill_: an integer of \d+ bits is no value of float32") as caught:
        Tensor([1.0]).fill_(10**digits)
    assert len(str(caught.value)) < 200
