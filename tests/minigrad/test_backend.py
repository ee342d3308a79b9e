"""Devices, on a machine without a GPU through a fake CuPy."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import minigrad as mg
from minigrad import DeviceError, Tensor, backend
from tests.cupy_standin import Array, installed, replaced

# ---- no CuPy, or no GPU ----------------------------------------------------------------------------------------------


def test_importing_and_using_minigrad_never_imports_cupy():
    """In a process of its own, in which attempts to import CuPy are noted, though somebody may catch the error."""
    program = """
import sys

attempts = []

class Note:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("cupy", "cupyx"):
            attempts.append(name)

sys.meta_path.insert(0, Note())
import minigrad as mg
x = mg.Tensor([1.0, 2.0], requires_grad=True, device="cpu")
(x.erf().softmax(0) * mg.randn(2)).sum().backward()
assert repr(x.grad.to("cpu")) and not attempts, attempts
mg.cuda_available()
assert attempts == ["cupy"], "this test notes nothing"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_cupy_a_gpu_is_an_error_that_says_how_to_get_it():
    with replaced({"cupy": None}):
        assert mg.cuda_available() is False
        for request in (
            lambda: Tensor(1.0, device="cuda"),
            lambda: Tensor(1.0).to("cuda"),
            lambda: mg.zeros(2, device="cuda:1"),
        ):
            with pytest.raises(DeviceError, match="needs CuPy, which cannot be imported") as error:
                request()
            assert "pip install -e '.[cuda12]' or '.[cuda13]'" in str(error.value)
            assert isinstance(error.value, RuntimeError)


def raises_at_import():
    class Broken:
        def find_spec(self, name, *rest):
            if name == "cupy":
                raise OSError("libcuda.so.1: cannot open shared object file")

    return Broken()


def test_cupy_that_cannot_be_imported_for_any_reason(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [raises_at_import(), *sys.meta_path])
    assert mg.cuda_available() is False
    with pytest.raises(DeviceError, match=r"cannot be imported \(libcuda\.so\.1"):
        Tensor(1.0, device="cuda")


def no_driver():
    raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


def test_cupy_without_a_driver():
    with installed(count_devices=no_driver):
        assert mg.cuda_available() is False
        with pytest.raises(DeviceError, match=r"CuPy finds no usable GPU or driver \(cudaErrorInsufficientDriver"):
            Tensor(1.0, device="cuda")


def test_cupy_without_a_gpu_or_with_too_few():
    with installed(devices=0):
        assert mg.cuda_available() is False
        with pytest.raises(DeviceError, match=r"device 'cuda': CuPy sees 0 GPU\(s\); use device='cpu'"):
            Tensor(1.0, device="cuda")
    with installed(devices=2):
        assert mg.cuda_available() is True
        with pytest.raises(DeviceError, match=r"device 'cuda:2': CuPy sees 2 GPU\(s\)"):
            Tensor(1.0, device="cuda:2")


@pytest.mark.parametrize("device", ["gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "", "cudax"])
def test_unknown_device_names(device):
    with pytest.raises(DeviceError, match=r'unknown device .* write "cpu", "cuda" or "cuda:1"'):
        Tensor(1.0, device=device)


def test_the_fake_leaves_what_was_there_before():
    before = {name: sys.modules.get(name) for name in ("cupy", "cupyx", "cupyx.scipy.special")}
    with installed():
        assert isinstance(Tensor(1.0, device="cuda").data, Array)
    assert {name: sys.modules.get(name) for name in before} == before


# ---- arrays on a device ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_gpus():
    with installed(devices=2):
        yield


@pytest.mark.usefixtures("two_gpus")
def test_tensors_are_made_where_they_are_asked_for_and_stay_there():
    x = Tensor([[1.0, 2.0]], device="cuda:1")
    made = [
        x, Tensor(x), Tensor(x.data), copy.deepcopy(x), x.clone(), x.detach(), x.to(np.float64),
        x + 1, x.sum(), x[0], x.mT @ x, x > 1, x.max(dim=1)[1], mg.where(x > 1, 1.0, 0.0), mg.where(x > 1, x, 0.0),
        mg.zeros_like(x), mg.ones_like(x), mg.zeros(2, device="cuda:1"), mg.full((2,), 1.5, device="cuda:1"),
        mg.arange(3, device="cuda:1"), mg.randn(2, device="cuda:1"),
    ]  # fmt: skip
    assert {tensor.device for tensor in made} == {"cuda:1"}
    assert "device='cuda:1'" in repr(x)
    assert Tensor([1.0], device="cuda").device == "cuda:0"


@pytest.mark.usefixtures("two_gpus")
def test_values_come_back_as_numpy_arrays_and_numbers():
    x = Tensor([[1.0, 2.0]], device="cuda")
    assert type(x.numpy()) is np.ndarray
    assert type(np.asarray(x)) is np.ndarray
    assert x.sum().item() == 3
    assert x.tolist() == [[1, 2]]
    assert float(x[0, 1]) == 2
    assert type(x.to("cpu").data) is np.ndarray
    assert x.to("cuda:0") is x


@pytest.mark.usefixtures("two_gpus")
def test_gradients_follow_a_tensor_to_its_device():
    x = Tensor([1.0, 2.0], requires_grad=True, device="cpu")
    y = x.to("cuda:1")
    assert y.device == "cuda:1"
    (y * y).sum().backward()
    assert type(x.grad.data) is np.ndarray
    assert x.grad.tolist() == [2, 4]
    (slope,) = mg.grad((x.to("cuda") ** 3).sum(), x, create_graph=True)
    (curvature,) = mg.grad(slope.sum(), x)
    assert (curvature.device, curvature.tolist()) == ("cpu", [6, 12])


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x * Tensor([1.0, 2.0], device="cpu"),
        lambda x: x * np.array([1.0, 2.0]),
        lambda x: np.array([1.0, 2.0]) * x,
        lambda x: x + Tensor([1.0, 2.0], device="cuda:1"),
        lambda x: mg.where(Tensor([True, False], device="cpu"), x, 0.0),
        lambda x: mg.cat([x, Tensor([1.0], device="cpu")]),
        lambda x: x.masked_fill(np.array([True, False]), 0.0),
    ],
)
def test_operands_on_two_devices_are_an_error_that_names_both(operation):
    with pytest.raises(DeviceError, match=r"operands on different devices, .*; move one with \.to\(device\)") as error:
        operation(Tensor([1.0, 2.0], device="cuda"))
    assert "on cuda:0" in str(error.value)
    assert "on cpu" in str(error.value) or "on cuda:1" in str(error.value)


@pytest.mark.usefixtures("two_gpus")
def test_a_gradient_on_another_device_than_the_output_is_an_error():
    x = Tensor([1.0, 2.0], requires_grad=True, device="cuda")
    with pytest.raises(DeviceError, match="backward: the gradient is on cpu, the output on cuda:0"):
        (x * 2).backward(Tensor([1.0, 1.0], device="cpu"))
    (x * 2).backward([1.0, 1.0])  # plain numbers go where the output is
    assert (x.grad.device, x.grad.tolist()) == ("cuda:0", [2, 2])


@pytest.mark.usefixtures("two_gpus")
def test_a_pullback_that_answers_from_another_device_is_an_error():
    @mg.op
    def lost(x):
        return x * 2.0, lambda g: np.ones(2)

    x = Tensor([1.0, 2.0], requires_grad=True, device="cuda")
    with pytest.raises(DeviceError, match="lost: a pullback gave a gradient on cpu for an input on cuda:0"):
        lost(x).sum().backward()


@pytest.mark.usefixtures("two_gpus")
def test_values_are_written_on_the_device_they_are_on():
    x = Tensor([1.0, 2.0], device="cuda:1")
    x.data = np.array([3.0, 4.0])
    assert (x.device, x.tolist()) == ("cuda:1", [3, 4])
    x[0] = 5.0
    x.copy_(Tensor([6.0, 7.0], device="cuda:1"))
    assert (x.device, x.tolist()) == ("cuda:1", [6, 7])


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays_and_their_library():
    assert backend.is_array(np.ones(2))
    assert not backend.is_array([1.0])
    assert not backend.is_array(np.float32(1))
    assert backend.array_module(1.0, np.ones(2)) is np
    with installed() as cupy:
        on_gpu = backend.to_device(np.ones(2), "cuda")
        assert backend.is_array(on_gpu)
        assert backend.array_module(np.float32(1), on_gpu) is cupy
        assert backend.device_of(on_gpu) == "cuda:0"


@pytest.mark.usefixtures("two_gpus")
def test_a_pickled_tensor_keeps_its_device():
    x = pickle.loads(pickle.dumps(Tensor([1.0, 2.0], requires_grad=True)))
    assert (x.device, x.requires_grad) == (mg.get_default_device(), True)


def test_a_gradient_that_is_right_but_for_its_device_is_named():
    @mg.op
    def lost(x):
        return x * 1.0, lambda g: np.ones(2, np.float32)

    with installed():
        x = Tensor([1.0, 2.0], requires_grad=True, device="cuda")
        with pytest.raises(DeviceError, match="lost: a pullback gave a gradient on cpu for an input on cuda:0"):
            lost(x).sum().backward()
