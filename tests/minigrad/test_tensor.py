"""Tensor: what it is made of and what not, what it says about itself, tensors without axes, what writes to it."""

import operator

import numpy as np
import pytest

import minigrad as mg
import nn
from minigrad import Tensor, ops
from minigrad.backend import is_array
from tests.support import leaf

# ---- what it is made of ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, np.float32),
        (2, np.int64),
        (True, np.bool_),
        ([1.0, 2], np.float32),
        ([[1, 2], [3, 4]], np.int64),
        ([], np.float32),
        (np.ones(2), np.float64),
        (np.ones(2, np.float16), np.float16),
        (np.float64(2), np.float64),
        (np.int32(2), np.int32),
        ([np.float64(1), np.float64(2)], np.float32),
        (range(3), np.int64),
        (Tensor([1.0], dtype=np.float64), np.float64),
        (np.ones(2, np.uint8), np.uint8),
    ],
)
def test_python_numbers_have_default_dtypes_and_arrays_keep_theirs(data, dtype):
    assert Tensor(data).dtype == dtype
    assert Tensor(data, dtype="float64").dtype == np.float64


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("abc", "a tensor holds floats, integers or booleans, not <U3"),
        (1j, "not complex128"),
        (None, "a tensor (holds|is made of)"),
        ([Tensor(1.0), Tensor(2.0)], "join a list of tensors with mg.stack or mg.cat"),
        ((Tensor([1.0]),), "mg.stack or mg.cat"),
        (np.array(["a"]), "not <U1"),
        (np.array([None]), "not object"),
    ],
)
def test_what_a_tensor_is_not_made_of(data, text):
    with pytest.raises(TypeError, match=text):
        Tensor(data)


def test_ragged_lists_are_an_error():
    with pytest.raises(ValueError, match="inhomogeneous"):
        Tensor([[1, 2], [3]])


def test_integers_and_booleans_refuse_gradients():
    for data in (1, [1, 2], True, np.arange(3)):
        with pytest.raises(
            RuntimeError, match=r"only floating-point tensors can require gradients, this one is (int64|bool)"
        ):
            Tensor(data, requires_grad=True)
    with pytest.raises(RuntimeError, match="only floating-point"):
        mg.zeros(2, dtype=np.int64, requires_grad=True)
    with pytest.raises(RuntimeError, match="only floating-point"):
        Tensor([1, 2]).requires_grad_()
    assert Tensor([1, 2], requires_grad=True, dtype=np.float32).requires_grad


def test_requires_grad_is_changed_on_leaves_only():
    x = Tensor([1.0])
    assert x.requires_grad_() is x
    y = x * 2
    with pytest.raises(RuntimeError, match=r"requires_grad can be changed on leaves only; use \.detach\(\)"):
        y.requires_grad = False
    y.requires_grad = True
    x.requires_grad = False
    assert not (x * 2).requires_grad


def test_a_gradient_that_is_set_must_be_a_tensor_of_the_same_shape():
    x = leaf([1.0, 2.0])
    with pytest.raises(TypeError, match="grad must be a Tensor or None, got ndarray"):
        x.grad = np.ones(2)
    with pytest.raises(ValueError, match=r"grad of shape \(1,\) for a tensor of shape \(2,\); they must be equal"):
        x.grad = Tensor([1.0])
    x.grad = Tensor([1.0, 2.0])


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_shape_and_size():
    x = Tensor(np.zeros((2, 0, 3)))
    assert (x.shape, x.ndim, x.dim(), x.numel(), len(x)) == ((2, 0, 3), 3, 3, 0, 2)
    assert (x.size(), x.size(0), x.size(-1)) == ((2, 0, 3), 2, 3)
    assert Tensor(1.0).numel() == 1
    assert (Tensor(1.0).device, Tensor(1.0).is_leaf) == (mg.get_default_device(), True)


@pytest.mark.cpu_only(reason="the texts of tensors on a GPU name it")
@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (Tensor(3), "tensor(3)"),
        (Tensor([True]), "tensor([ True])"),
        (Tensor([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (Tensor([1.0], dtype=np.float64), "tensor([1.], dtype=float64)"),
        (Tensor([1.0], requires_grad=True) * 2, "tensor([2.], made by multiply)"),
        (Tensor(2.5), "tensor(2.5)"),
        (Tensor(0.0, requires_grad=True).exp(), "tensor(1., made by exp)"),
        (Tensor([]), "tensor([])"),
        (Tensor([], dtype=np.int64), "tensor([], dtype=int64)"),
        (mg.zeros(2, 0, requires_grad=True), "tensor([], size=(2, 0), requires_grad=True)"),
        (mg.zeros(0, 3, dtype=np.bool_), "tensor([], size=(0, 3), dtype=bool)"),
        (mg.ones(1, dtype=np.float16), "tensor([1.], dtype=float16)"),
        (Tensor([1, 2], dtype=np.int32), "tensor([1, 2], dtype=int32)"),
        (Tensor([float("nan"), float("-inf")]), "tensor([ nan, -inf])"),
        (mg.eye(2), "tensor([[1., 0.],\n        [0., 1.]])"),
        (mg.arange(1000), "tensor([  0,   1,   2, ..., 997, 998, 999])"),
    ],
)
def test_repr(tensor, text):
    assert repr(tensor) == str(tensor) == text


def test_repr_of_a_large_tensor_is_short():
    assert len(repr(mg.zeros(100, 100, 100, requires_grad=True))) < 2000


def test_numbers_of_a_single_element():
    x = Tensor([[2.5]])
    assert (x.item(), float(x), int(x), bool(x)) == (2.5, 2.5, 2, True)
    assert type(x.item()) is float
    assert type(Tensor(3).item()) is int
    assert type(Tensor(True).item()) is bool
    assert not bool(Tensor(0.0))
    for convert in (float, int, Tensor.item):
        with pytest.raises(ValueError, match=r"item\(\) needs a tensor with one element, this one has shape \(2,\)"):
            convert(Tensor([1.0, 2.0]))
    for count in (0, 2):
        with pytest.raises(
            ValueError, match=rf"bool\(\) of a tensor with {count} elements, .* use \.any\(\) or \.all\(\)"
        ):
            bool(mg.zeros(count))


def test_an_integer_tensor_is_an_index():
    assert [10, 20, 30][Tensor(1)] == 20
    assert list(range(Tensor(3))) == [0, 1, 2]
    assert [10, 20, 30][Tensor(2, dtype=np.uint8)] == 30
    for tensor in (Tensor(1.0), Tensor([1, 2]), Tensor(True)):
        with pytest.raises(TypeError, match="only a tensor with one integer can be an index"):
            [10, 20][tensor]


def test_tensors_are_hashed_by_identity_and_compared_by_element():
    x, y = Tensor([1.0, 2.0]), Tensor([1.0, 3.0])
    assert len({x, y, x}) == 2
    assert (x == y).tolist() == [True, False]
    assert (x != 1).tolist() == [False, True]
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    with pytest.raises(TypeError, match="less takes tensors, arrays and numbers, got str"):
        _ = x < "a"


def test_iteration_and_membership_of_rows():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    first, second = x
    (first * second).sum().backward()
    assert x.grad.tolist() == [[3, 4], [1, 2]]
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]


def test_whether_an_element_equals_a_value():
    x = leaf([[1.0, 2.0], [float("nan"), 4.0]])
    for value in (2, 2.0, True, np.float32(4), Tensor(1), Tensor(2), Tensor([[7], [4]])):
        assert value in x
    for value in (3.0, float("nan"), False, Tensor([7.0, 1.0])):
        assert value not in x
    assert 1.0 not in mg.zeros(0)
    for value in ("a", None, [1.0]):
        with pytest.raises(TypeError, match=r"in: an element of a tensor is a number, not (str|NoneType|list)"):
            _ = value in x
    assert x in [x, 1.0]
    with pytest.raises(ValueError, match=r"equal: .*broadcast"):
        _ = Tensor([1, 2, 3]) in x


def test_reversed_turns_the_rows_round_and_keeps_the_graph():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    y = reversed(x)
    assert (type(y), y.tolist()) == (Tensor, [[3, 4], [1, 2]])
    y.backward([[1.0, 2.0], [3.0, 4.0]])
    assert x.grad.tolist() == [[3, 4], [1, 2]]
    assert reversed(Tensor(2.0)).item() == 2


def test_what_a_single_element_becomes():
    assert complex(Tensor(1.5)) == 1.5
    assert (float(Tensor(3)), int(Tensor(-2.7)), bool(Tensor([[0.5]]))) == (3, -2, True)
    assert round(float(Tensor(2.5)), 1) == 2.5
    for value in ("nan", "inf"):
        with pytest.raises((ValueError, OverflowError), match=r"cannot convert float"):
            int(Tensor(float(value)))


def test_casts_give_the_tensor_itself_where_nothing_is_to_do():
    x, ids = Tensor([1.5, -2.0]), Tensor([1, 2])
    assert (x.float() is x, ids.long() is ids, x.contiguous() is x, x.type_as(x) is x) == (True,) * 4
    assert (x.half().dtype, x.int().dtype, x.int().tolist()) == (np.float16, np.int32, [1, -2])
    assert (x.type_as(ids).dtype, ids.type_as(x).dtype) == (np.int64, np.float32)
    assert (x.is_floating_point(), x.half().is_floating_point(), ids.is_floating_point()) == (True, True, False)
    rows = mg.eye(2, 3).T
    assert rows.contiguous().data.flags.c_contiguous and not rows.data.flags.c_contiguous
    assert rows.contiguous().tolist() == rows.tolist()


# ---- 0-d tensors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        *[getattr(Tensor, name) for name in ("sum", "mean", "max", "amin", "var")],
        lambda x: x @ x,
        lambda x: x.sum() / 2,
        lambda x: x.sum().T,
        lambda x: x.sum().reshape(()),
        lambda x: x[0],
        lambda x: -x[0],
        lambda x: 2 ** x[0],
        lambda x: x[0].maximum(1.0),
        lambda x: x[0].where(x[0] > 0, 0.0),
        lambda x: x[0].softmax(0),
        lambda x: x[0].to(np.float32),
        *[lambda x, name=name: getattr(x[0], name)() for name in ("exp", "relu", "abs", "clone", "detach", "sum")],
    ],
)
def test_a_0d_result_is_an_array_of_its_dtype_and_so_is_its_gradient(make):
    x = leaf([1.0, 2.0], np.float32)
    y = make(x)
    assert is_array(y.data)
    assert (y.shape, y.dtype) == ((), np.float32)
    if y.requires_grad:
        y.backward()
        assert is_array(x.grad.data)
        assert x.grad.dtype == np.float32


def test_a_0d_parameter_is_trained_in_place():
    p = Tensor(3.0, requires_grad=True)
    (p * p).backward()
    assert is_array(p.grad.data)
    assert (p.grad.shape, p.grad.item()) == ((), 6)
    (p * 2).backward()
    assert p.grad.item() == 8
    with mg.no_grad():
        p -= 0.5 * p.grad
    assert (p.shape, p.dtype, p.item(), p.is_leaf) == ((), np.float32, -1, True)
    p.data[...] = 4.0
    assert p.item() == 4


def test_a_0d_tensor_has_no_length_and_no_rows():
    with pytest.raises(TypeError, match="len\\(\\) of a 0-d tensor"):
        len(Tensor(1.0))
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        list(Tensor(1.0))
    with pytest.raises(IndexError):
        Tensor(1.0)[0]


# ---- shapes, writes and operators ------------------------------------------------------------------------------------


def test_shapes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="flatten: start_dim 1 comes after end_dim 0"):
        mg.ones(2, 3).flatten(1, 0)
    with pytest.raises(ValueError, match="name every dimension, -1 keeps an old one's length"):
        mg.ones(3).expand(-1, 3)
    with pytest.raises(TypeError, match=r"'gpu' is neither a device .* nor a dtype"):
        mg.ones(3).to("gpu")


def test_numpy_integers_are_dimensions_and_sizes():
    x = mg.ones(2, 1, 4)
    axis = np.int64(1)
    assert x.sum(axis).shape == x.mean([axis]).shape == x.squeeze(axis).shape == x.amax(axis).shape == (2, 4)
    assert [piece.shape for piece in x.split(np.int64(3), 2)] == [(2, 1, 3), (2, 1, 1)]


@pytest.mark.cpu_only(reason="the texts of tensors on a GPU name it")
def test_a_single_number_is_formatted_as_one():
    assert f"{mg.Tensor(1.5):.3f}" == "1.500"
    assert f"{mg.Tensor([1.5])}" == "tensor([1.5])"


def test_a_write_that_does_not_fit_names_what_was_written():
    x = mg.Tensor([1, 2])
    with pytest.raises(
        ValueError, match=r"copy_: a value of shape \(3,\) does not broadcast to this tensor's shape \(2,\)"
    ):
        x.copy_([1, 2, 3])
    with pytest.raises(IndexError, match=r"x\[i\] = v: index 7 is out of bounds"):
        x[7] = 0
    with pytest.raises(OverflowError, match=r"x\[i\] = v: "):
        x[0] = 2**70


@pytest.mark.parametrize("change", [operator.ipow, operator.ifloordiv, operator.imod, operator.iadd, operator.imul])
def test_every_operator_that_assigns_writes_to_a_leaf_inside_no_grad_only(change):
    leaf = mg.Tensor([3.0, 5.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="requires grad, so its values are not written over"):
        change(leaf, 2)
    with mg.no_grad():
        assert change(leaf, 2) is leaf
    assert leaf.numpy().tolist() == change(np.array([3.0, 5.0]), 2).tolist()


def test_a_number_is_no_matrix():
    with pytest.raises(TypeError, match=r"matmul: a number has no axes; multiply by it with \*"):
        mg.ones(2, 2) @ 2


# ---- what it is not made of ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["no", 1, None, np.float64, mg.float64])
def test_requires_grad_is_a_bool(value):
    x = Tensor([1.0])
    for call in (lambda: mg.tensor([1.0], value), lambda: x.requires_grad_(value), lambda: nn.Parameter([1.0], value)):
        with pytest.raises(TypeError, match=r"requires_grad must be True or False, got .*; a dtype is given by name"):
            call()
    x.requires_grad = np.bool_(True)
    assert x.requires_grad is True


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
def test_arrays_of_a_foreign_byte_order_become_native():
    array = np.array([1.5, 2.0]).astype(">f4")
    x = Tensor([1.0, 2.0])
    made = [Tensor(array), Tensor([1.5, 2], dtype=">f4"), mg.full((2,), 1.5, dtype=">f4"), mg.ones(2, dtype=">f4")]
    for y in (*made, x.to(">f4"), x + array, ops.astype(x.double(), dtype=">f4")):
        assert y.dtype == np.float32 and y.dtype.isnative
    assert Tensor(array).tolist() == [1.5, 2]
    assert (x + array).tolist() == [2.5, 4]
    x.data = array
    assert x.dtype.isnative and x.tolist() == [1.5, 2]


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize <= 8, reason="long doubles are doubles here")
def test_long_doubles_are_refused():
    x, wide = Tensor([1.0, 2.0]), np.ones(2, np.longdouble)
    for call in (
        lambda: Tensor(wide),
        lambda: Tensor(np.longdouble(1)),
        lambda: Tensor([1.0], dtype=np.longdouble),
        lambda: mg.zeros(2, dtype=np.longdouble),
        lambda: mg.randn(2, dtype=np.longdouble),
        lambda: mg.arange(2, dtype=np.longdouble),
        lambda: x.to(np.longdouble),
        lambda: x * wide,
        lambda: x.softmax(0, dtype=np.longdouble),
    ):
        with pytest.raises(TypeError, match=r"a tensor holds floats of 16, 32 or 64 bits, not float(96|128)"):
            call()
