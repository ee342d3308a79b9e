"""Memory shared with PyTorch, NumPy and CuPy through DLPack, both ways."""

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor
from tests.cupy_standin import installed
from tests.support import leaf, torch_or_skip

NAMES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
SHAPES = [(), (3,), (2, 3), (0, 2)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tensor_of_pytorchs_shares_its_memory(name, shape):
    torch = torch_or_skip()
    theirs = torch.ones(shape, dtype=getattr(torch, name))
    ours = mg.from_dlpack(theirs)
    assert (type(ours), str(ours.dtype), ours.shape, ours.device) == (Tensor, name, shape, "cpu")
    assert (ours.requires_grad, ours.is_leaf) == (False, True)
    theirs.fill_(0)
    assert np.array_equal(ours.numpy(), np.zeros(shape))
    ours.fill_(1)
    assert np.array_equal(theirs.numpy(), np.ones(shape))


@pytest.mark.cpu_only(reason="the PyTorch beside it has no GPU")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_pytorch_takes_our_memory(name, shape):
    torch = torch_or_skip()
    ours = mg.ones(shape, dtype=name)
    theirs = torch.from_dlpack(ours)
    assert (theirs.dtype, tuple(theirs.shape)) == (getattr(torch, name), shape)
    ours.fill_(0)
    assert np.array_equal(theirs.numpy(), np.zeros(shape))
    theirs.fill_(1)
    assert np.array_equal(ours.numpy(), np.ones(shape))


@pytest.mark.cpu_only(reason="the PyTorch beside it has no GPU")
def test_views_keep_their_strides_both_ways():
    torch = torch_or_skip()
    ours = mg.arange(12.0).view(3, 4)
    for mine, its in ((ours.T, lambda t: t.T), (ours[1:, ::2], lambda t: t[1:, ::2])):
        assert torch.from_dlpack(mine).tolist() == mine.tolist()
        theirs = torch.arange(12.0).view(3, 4)
        assert mg.from_dlpack(its(theirs)).tolist() == mine.tolist()
        assert mg.from_dlpack(its(theirs)).data.strides == mine.data.strides


@pytest.mark.cpu_only(reason="the PyTorch beside it has no GPU")
def test_shared_memory_outlives_who_made_it():
    torch = torch_or_skip()
    assert mg.from_dlpack(torch.arange(1000.0) * 2).sum().item() == 999000
    assert torch.from_dlpack(mg.arange(1000.0) * 2).sum().item() == 999000


def test_arrays_of_numpys():
    array = np.arange(4.0)
    x = mg.from_dlpack(array)
    array[0] = 7
    x[1] = 8
    assert (x.tolist(), array.tolist(), x.dtype) == ([7, 8, 2, 3], [7, 8, 2, 3], np.float64)
    assert np.shares_memory(np.from_dlpack(x), array)
    x.requires_grad_()
    (x * x).sum().backward()
    assert x.grad.tolist() == [14, 16, 4, 6]


def test_memory_lent_for_reading_is_read_and_not_written():
    array = np.arange(3.0)
    array.flags.writeable = False
    x = mg.from_dlpack(array)
    assert (x * 2).tolist() == [0, 2, 4]
    for write in (lambda: x.add_(1), lambda: x.copy_(1), lambda: x.__setitem__(0, 1)):
        with pytest.raises(RuntimeError, match=r"memory of this tensor is for reading only .*; write to a \.clone\(\)"):
            write()
    assert x.clone().add_(1).tolist() == [1, 2, 3]
    assert array.tolist() == [0, 1, 2]
    wide = mg.from_dlpack(np.broadcast_to(np.ones(2), (3, 2)))
    with pytest.raises(RuntimeError, match="is an expanded view"):
        wide.zero_()


@pytest.mark.cpu_only(reason="the PyTorch beside it has no GPU")
def test_what_requires_grad_does_not_share_its_memory():
    torch = torch_or_skip()
    x = leaf([1.0, 2.0])
    for tensor in (x, x * 1.0):
        for take in (np.from_dlpack, torch.from_dlpack, mg.from_dlpack):
            with pytest.raises(BufferError, match=r"a tensor that requires grad does not share .*; share its \.detach"):
                take(tensor)
        assert np.shares_memory(np.from_dlpack(tensor.detach()), tensor.data)
    with pytest.raises(BufferError, match="Can't export tensors that require gradient"):
        mg.from_dlpack(torch.ones(2, requires_grad=True))


def test_a_tensor_of_ours_is_detached_so_that_graphs_notice_what_is_written():
    x, constant = leaf([1.0, 2.0]), Tensor([3.0, 4.0], dtype=np.float64)
    y = (x * constant).sum()
    mg.from_dlpack(constant).zero_()
    with pytest.raises(RuntimeError, match="was changed in place"):
        y.backward()


@pytest.mark.parametrize("value", [[1.0], 1.0, None])
def test_other_things_share_no_memory(value):
    with pytest.raises(TypeError, match=rf"from_dlpack: takes what has __dlpack__, got {type(value).__name__}"):
        mg.from_dlpack(value)


def test_dtypes_that_a_tensor_does_not_hold():
    with pytest.raises(TypeError, match="a tensor holds floats, integers or booleans, not complex64"):
        mg.from_dlpack(np.ones(2, np.complex64))


def test_views_that_run_backwards_are_not_shared():
    x = mg.arange(6).reshape(2, 3)
    for view in (x[::-1], x[:, ::-1], x.flip(0), mg.arange(1)[::-1]):
        with pytest.raises(BufferError, match=r"runs backwards, .* share its \.clone\(\)"):
            np.from_dlpack(view)
        assert np.from_dlpack(view.clone()).tolist() == view.tolist()


def test_a_masked_array_would_lose_its_mask():
    with pytest.raises(TypeError, match="a masked array would lose its mask; fill it first"):
        mg.from_dlpack(np.ma.array([1.0, 2.0], mask=[True, False]))


def test_a_gpus_memory_stays_there():
    with installed(devices=2):
        x = mg.ones(3, device="cuda:1")
        assert x.__dlpack_device__() == (2, 1)
        y = mg.from_dlpack(x.data)
        assert (y.device, y.tolist()) == ("cuda:1", [1, 1, 1])
        assert np.shares_memory(y.data, x.data)
    with pytest.raises(mg.DeviceError, match=r"needs CuPy|finds no usable GPU|sees"):
        mg.from_dlpack(y.data)
