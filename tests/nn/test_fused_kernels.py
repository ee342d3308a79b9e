"""On a GPU layer norm, GELU, cross entropy and the steps of training are computed by kernels, with the CPU's results.

The GPU is the stand-in for CuPy, on which kernels are run by the emulator; launches are counted by it.
"""

import numpy as np
import pytest

import kernels.parameters
import minigrad as mg
import nn
import nn.functional as F
from kernels import layer_norm_forward
from kernels.parameters import Parameter, adam_step
from minigrad.backend import DeviceError
from models import Transformer
from nn import losses
from nn.optim import Adam, AdamW, GradScaler, clip_grad_norm_
from tests.cupy_standin import installed
from tests.cupy_standin.cuda import counting_launches
from tests.kernels.emulator.compiled import needs_compiler
from tests.support import assert_close

pytestmark = needs_compiler

INF, NAN = np.inf, np.nan
TOLERANCE = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}  # which have 23, 10 and 7 bits behind the first
LAYER_NORM = ["layer_norm_forward", "layer_norm_backward", "layer_norm_sums_of_parts", "layer_norm_sums"]
CROSS_ENTROPY = ["cross_entropy_forward", "cross_entropy_backward"]
GELU = ["gelu_forward", "gelu_backward"]
ALL = {*LAYER_NORM, *CROSS_ENTROPY, *GELU, "adam", "squares_of_chunks", "scale_gradients"}


@pytest.fixture(autouse=True)
def cupy():
    with installed(devices=2) as module:
        yield module


def launched(launches):
    """How often which of the fused kernels was launched."""
    return {name: count for name, count in launches.items() if name in ALL}


def draw(*shapes, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return [np.array(rng.standard_normal(shape), dtype) for shape in shapes]


def derivatives(function, arrays, device, second=True):
    """The value, its gradients, and those of their squares, of a function of tensors on this device."""
    inputs = [mg.Tensor(array, device=device, requires_grad=True) for array in arrays]
    value = function(*inputs)
    weights = np.cos(np.arange(np.prod(value.shape))).reshape(value.shape)
    weights = mg.Tensor(weights.astype(value.dtype), device=device)
    first = mg.grad((value * weights).sum(), inputs, retain_graph=True)
    if not second:
        return value, *first
    graph = mg.grad((value * weights).sum(), inputs, create_graph=True)
    squares = mg.grad(sum([(g * g).sum() for g in graph]), inputs, allow_unused=True)  # a bias has no part in them
    return value, *first, *[g for g in squares if g is not None]


def assert_same_on_both(function, arrays, kernels_of_it, tolerance=None, second=True):
    """The CPU's results on a GPU, where these kernels were launched once each on the way to value and gradients."""
    expected = derivatives(function, arrays, "cpu", second)
    with counting_launches() as launches:
        derivatives(function, arrays, "cuda", second=False)
    assert launched(launches) == dict.fromkeys(kernels_of_it, 1)
    found = derivatives(function, arrays, "cuda", second)
    for place, (mine, its) in enumerate(zip(found, expected, strict=True)):
        assert mine.device == "cuda:0" and mine.dtype == its.dtype
        assert_close(mine.numpy(), its, tolerance or TOLERANCE[str(arrays[0].dtype)], f"result {place}", least=1e-6)


# ---- operations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("affine", [(), ("weight",), ("bias",), ("weight", "bias")], ids=str)
def test_layer_norm(affine, dtype):
    arrays = draw((2, 3, 8), *[8] * len(affine), dtype=dtype)
    assert_same_on_both(
        lambda x, *given: F.layer_norm(x, 8, **dict(zip(affine, given, strict=True))),
        arrays,
        LAYER_NORM if affine else LAYER_NORM[:2],
        tolerance=TOLERANCE[dtype] * (1 if dtype == "float32" else 5),  # of a second derivative in 16 bits
    )


def test_layer_norm_over_several_axes_of_a_view():
    arrays = draw((5, 3, 4), (4, 5), (4, 5))
    assert_same_on_both(
        lambda x, w, b: F.layer_norm(x.transpose(0, 1).transpose(1, 2), (4, 5), w, b), arrays, LAYER_NORM
    )
    assert_same_on_both(lambda x: F.layer_norm(x, (5, 3, 4)), arrays[:1], LAYER_NORM[:2])


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4)])
def test_layer_norm_of_no_rows(shape):
    assert_same_on_both(lambda x, w: F.layer_norm(x, 4, w), draw(shape, 4), [], second=False)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate, dtype):
    for x in (*draw((3, 5), dtype=dtype), np.array(1.5, dtype)):
        assert_same_on_both(lambda x: F.gelu(x, approximate=approximate), [x], GELU)


def test_gelu_of_integers_of_arrays_and_of_another_form(cupy):
    assert F.gelu(mg.Tensor([1, 2], device="cuda")).dtype == np.float32
    (x,) = draw(3)
    assert_close(F.gelu(cupy.asarray(x)).get(), F.gelu(x), 1e-6)
    with pytest.raises(ValueError, match="gelu: approximate must be 'none' or 'tanh', got 'erf'"):
        F.gelu(mg.ones(3, device="cuda"), approximate="erf")


IDS = np.array([[1, 4], [-100, 0], [2, 2]])


def of_ids(x, **options):
    ids = mg.Tensor(IDS if x.ndim == 3 else IDS.reshape(-1), device=x.device)
    return F.cross_entropy(x, ids, **options)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}, {"ignore_index": 2}], ids=str)
def test_cross_entropy(options, reduction, dtype):
    if "ignore_index" in options:
        arrays, options = draw((4, 5), dtype=dtype), {**options, "reduction": reduction}
        ids = np.array([2, 1, 0, 2], np.int32)  # not the kernel's dtype
        assert_same_on_both(
            lambda x: F.cross_entropy(x, mg.Tensor(ids, device=x.device), **options), arrays, CROSS_ENTROPY
        )
    else:
        assert_same_on_both(
            lambda x: of_ids(x, reduction=reduction, **options), draw((6, 5), dtype=dtype), CROSS_ENTROPY
        )


def test_cross_entropy_with_the_classes_in_the_middle():
    assert_same_on_both(lambda x: of_ids(x), draw((3, 5, 2)), CROSS_ENTROPY)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_infinite_and_nan_logits_give_the_same(smoothing):
    logits = draw((6, 5))[0]
    logits[0, 2], logits[1, 1], logits[2], logits[3, 0], logits[4, 2] = -INF, -INF, NAN, NAN, INF
    logits[5, :] = -INF
    results = []
    for device in ("cpu", "cuda"):
        x = mg.Tensor(logits, device=device, requires_grad=True)
        with np.errstate(all="ignore"):
            loss = of_ids(x, reduction="none", label_smoothing=smoothing)
        results.append([loss.numpy(), mg.grad(loss.sum(), x)[0].numpy()])
    for on_cpu, on_gpu in zip(*results, strict=True):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-5, atol=1e-7)


def test_what_other_forms_of_cross_entropy_are_left_to():
    """Weights of classes, and probabilities as targets, go by array operations, with the same results."""
    (weight,) = np.abs(draw(5, seed=1))
    for function in (
        lambda x: of_ids(x, weight=mg.Tensor(weight, device=x.device)),
        lambda x: F.cross_entropy(x, F.softmax(x * 2, dim=-1)),
    ):
        assert_same_on_both(function, draw((6, 5)), [], tolerance=2e-6)
    with pytest.raises(IndexError, match="cross_entropy: target 7 is out of range for 5 classes"):
        F.cross_entropy(mg.ones(1, 5, device="cuda"), mg.Tensor([7], device="cuda"))


def test_float64_and_mixed_dtypes_are_left_to_array_operations():
    for dtypes in (["float64"] * 3, ["float16", "float32", "float32"]):
        arrays = [x.astype(dtype) for x, dtype in zip(draw((3, 8), 8, 8), dtypes, strict=True)]
        tolerance = 1e-12 if dtypes[0] == "float64" else 2e-3
        assert_same_on_both(
            lambda x, w, b: F.layer_norm(x, 8, w, b), arrays, [], tolerance=tolerance, second=dtypes[0] == "float64"
        )
    assert_same_on_both(F.gelu, draw(5, dtype="float64"), [], tolerance=1e-12)


def test_a_gpu_that_is_too_old_for_16_bits(monkeypatch, cupy):
    monkeypatch.setattr(cupy.cuda.Device, "compute_capability", "75")
    assert_same_on_both(F.gelu, draw(5), GELU)
    assert_same_on_both(F.gelu, draw(5, dtype="float16"), [])
    with pytest.raises(TypeError, match=r"gelu: float16 needs compute capability 8.0, cuda:0 has 7.5"):
        kernels.gelu_forward(cupy.ones(3, np.float16), approximate="none")


def test_on_the_second_gpu():
    x, weight = draw((3, 8), 8)
    expected = derivatives(lambda x, w: F.gelu(F.layer_norm(x, 8, w)), [x, weight], "cpu")
    found = derivatives(lambda x, w: F.gelu(F.layer_norm(x, 8, w)), [x, weight], "cuda:1")
    for mine, its in zip(found, expected, strict=True):
        assert mine.device == "cuda:1"
        assert_close(mine.numpy(), its, 1e-6)


def test_a_numpy_array_in_the_wrong_place_fails(cupy):
    x, row = cupy.ones((3, 4), np.float32), np.ones(4, np.float32)
    with pytest.raises(DeviceError, match="layer_norm: weight is on cpu, other arrays of the call are on cuda:0"):
        layer_norm_forward(x, row, None, eps=1e-5)
    on_gpu = cupy.ones(4, np.float32)
    with pytest.raises(DeviceError, match="adam_step: values is on cuda:0, other arrays of the call are on cpu"):
        adam_step([Parameter(on_gpu, row, on_gpu, on_gpu)], step=1, lr=1.0, betas=(0.9, 0.9), eps=1.0)
    with cupy.cuda.Device(1):
        factor = cupy.asarray(np.array(2, np.float32))
    with pytest.raises(DeviceError, match="scale: factor is on cuda:1, other arrays of the call are on cuda:0"):
        kernels.parameters.scale([on_gpu], factor)
    with pytest.raises(DeviceError, match="operands on different devices"):
        F.layer_norm(mg.Tensor(x), 4, mg.Tensor(row, device="cpu"))


# ---- optimizers ------------------------------------------------------------------------------------------------------

SHAPES = [(), (5,), (40, 30), (0,), (3, 4)]


def parameters_on(device, dtypes=("float32",)):
    arrays = draw(*SHAPES)
    return [nn.Parameter(array, dtype=dtypes[place % len(dtypes)], device=device) for place, array in enumerate(arrays)]


def set_gradients(parameters, step):
    """The gradients of a step; one parameter has none at times."""
    for place, (parameter, gradient) in enumerate(zip(parameters, draw(*SHAPES, seed=step), strict=True)):
        gradient = mg.Tensor(gradient.astype(parameter.dtype), device=parameter.device)
        parameter.grad = None if (place, step) == (1, 2) else gradient


def trained(device, kind, dtypes=("float32",), **options):
    """Parameters and an optimizer's state after five steps, and how many launches of Adam's kernel each took."""
    parameters = parameters_on(device, dtypes)
    optimizer = kind(parameters, **options)
    counts = []
    for step in range(5):
        set_gradients(parameters, step)
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        with counting_launches() as launches:
            optimizer.step()
        counts.append(launches["adam"])
    return parameters, optimizer.state_dict(), counts


def assert_same_state(found, expected, tolerance):
    for mine, its in zip(found["state"].values(), expected["state"].values(), strict=True):
        assert mine["step"] == its["step"]
        for name in ("exp_avg", "exp_avg_sq"):
            assert mine[name].dtype == its[name].dtype
            assert_close(mine[name], its[name], tolerance, name)


@pytest.mark.parametrize("options", [{"weight_decay": 0.0}, {"weight_decay": 0.1}, {"betas": (0.5, 0.9), "eps": 1e-3}])
@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_adam_moves_all_parameters_in_one_launch(kind, options):
    found, state, counts = trained("cuda", kind, **options)
    expected, expected_state, _ = trained("cpu", kind, **options)
    assert counts == [1, 1, 1, 2, 2]  # two once a parameter has moved less often than the others
    for mine, its in zip(found, expected, strict=True):
        assert_close(mine.numpy(), its, 1e-6)
    assert_same_state(state, expected_state, 1e-6)


def test_parameters_of_several_dtypes_have_a_launch_each_or_none():
    dtypes = ("float32", "float64", "float16")
    found, state, counts = trained("cuda", AdamW, dtypes)
    with np.errstate(all="ignore"):
        on_cpu, state_on_cpu, _ = trained("cpu", AdamW, dtypes)
    exact, _, _ = trained("cpu", AdamW, ("float64",))
    assert counts == [2] * 5
    assert_same_state(state, state_on_cpu, 3e-3)
    for mine, its, right in zip(found, on_cpu, exact, strict=True):
        assert mine.dtype == its.dtype
        if mine.dtype == np.float16:  # whose steps the CPU computes in float16 itself
            distances = [np.linalg.norm(x.numpy().astype(np.float64) - right.numpy()) for x in (mine, its)]
            assert distances[0] < 0.5 * distances[1]
        else:
            assert_close(mine.numpy(), its, 1e-6)


def test_parameters_of_two_gpus_and_of_strange_order():
    parameters = [nn.Parameter(x, device=device) for x in draw(3) for device in ("cuda:0", "cuda:1", "cpu")]
    parameters[0].data = mg.Tensor(draw((4, 3))[0], device="cuda:0").transpose(0, 1).data  # not contiguous
    before = [parameter.numpy().copy() for parameter in parameters]
    optimizer = AdamW(parameters, lr=0.5, weight_decay=0.0)
    for parameter in parameters:
        parameter.grad = mg.Tensor(np.ones(parameter.shape, "f"), device=parameter.device)
    with counting_launches() as launches:
        optimizer.step()
    assert launches["adam"] == 1  # on the second GPU
    for parameter, values in zip(parameters, before, strict=True):
        assert_close(parameter.numpy(), values - 0.5, 1e-5)


def test_a_gradient_on_another_device_is_refused():
    parameter = nn.Parameter(draw(3)[0], device="cuda")
    parameter.grad = mg.ones(3, device="cpu")
    with pytest.raises(TypeError, match="Unsupported type"):
        AdamW([parameter]).step()


def test_parameters_of_the_same_memory_are_moved_one_after_the_other():
    steps = {}
    for device in ("cpu", "cuda"):
        first, other = (nn.Parameter(x, device=device) for x in draw(3, 3))
        second = first.detach().requires_grad_()
        for parameter, gradient in ((first, 1.0), (other, 1.0), (second, -2.0)):
            parameter.grad = mg.full((3,), gradient, device=device)
        with counting_launches() as launches:
            AdamW([first, second, other], betas=(0.5, 0.9), eps=1.0).step()
        steps[device] = first.numpy(), other.numpy()
    assert launches["adam"] == 1 and launches.total() > 5  # the second one alone, by array operations
    for mine, its in zip(steps["cuda"], steps["cpu"], strict=True):
        assert_close(mine, its, 1e-6)


def test_graphs_notice_a_step_and_gradients_are_only_read():
    parameter = nn.Parameter(draw(3)[0], device="cuda")
    loss = (parameter * parameter).sum()
    array = parameter.data
    parameter.grad = mg.ones(1, device="cuda").expand(3)  # a view
    AdamW([parameter]).step()
    assert parameter.data is array and parameter.grad.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_gradients_are_clipped_in_a_few_launches(max_norm):
    norms, clipped = [], []
    for device in ("cpu", "cuda"):
        parameters = parameters_on(device)
        set_gradients(parameters, 2)
        with counting_launches() as launches:
            norms.append(clip_grad_norm_(parameters, max_norm))
        clipped.append([parameter.grad for parameter in parameters if parameter.grad is not None])
    assert launched(launches) == {"squares_of_chunks": 1, "scale_gradients": 1} and launches.total() < 10
    assert_close(norms[1].numpy(), norms[0], 1e-6)
    for mine, its in zip(clipped[1], clipped[0], strict=True):
        assert_close(mine.numpy(), its, 1e-6)


def test_a_gradient_of_two_parameters_is_clipped_as_on_the_cpu():
    parameters = [nn.Parameter(np.zeros(2, "f"), device="cuda") for _ in range(2)]
    parameters[0].grad = parameters[1].grad = mg.Tensor([3.0, 4.0], device="cuda")
    with counting_launches() as launches:
        clip_grad_norm_(parameters, 1.0)
    assert not launched(launches)  # two threads would write to it


def test_the_gradient_scaler_unscales_in_one_launch():
    parameters = parameters_on("cuda")
    scaler, optimizer = GradScaler(init_scale=4.0), AdamW(parameters)
    for wrong in (None, INF, NAN):
        set_gradients(parameters, 0)
        if wrong is not None:
            parameters[2].grad.data[7, 5] = wrong
        before = [parameter.grad.numpy().copy() for parameter in parameters]
        with counting_launches() as launches:
            scaler.unscale_(optimizer)
        assert launched(launches) == {"scale_gradients": 1} and launches.total() == 2
        for parameter, gradient in zip(parameters, before, strict=True):
            np.testing.assert_array_equal(parameter.grad.numpy(), gradient / 4)
        values = parameters[1].numpy().copy()
        scaler.step(optimizer)
        assert (parameters[1].numpy() == values).all() == (wrong is not None)
        scaler.update()
        scaler = GradScaler(init_scale=4.0)


# ---- a model ---------------------------------------------------------------------------------------------------------


def train(device, steps=4, dropout=0.0):
    """Losses, parameters after some steps, and launches by name of the last step of a small Transformer."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, 11, (2, 3, 6))
    source[1, 4:] = target[2, 3:] = 0  # padding
    mg.manual_seed(0)
    model = Transformer(
        11, 11, d_model=16, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1, dropout=dropout,
        activation="gelu", final_norm=True,
    ).to(device)  # fmt: skip
    # With a small eps a gradient that is 0 but for rounding would move a parameter by lr, at random.
    optimizer = AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    source, target = (mg.Tensor(ids, device=device) for ids in (source, target))
    found = []
    for _ in range(steps):
        with counting_launches() as launches:
            optimizer.zero_grad()
            logits = model(source, target[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 11), target[:, 1:].reshape(-1), ignore_index=0)
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        found.append(loss.item())
    return np.array(found), model.state_dict(), launches


def test_a_transformer_trains_as_on_the_cpu_in_few_launches(monkeypatch):
    expected_losses, expected, _ = train("cpu")
    assert expected_losses[-1] < expected_losses[0]
    losses_found, parameters, launches = train("cuda")
    assert_close(losses_found, expected_losses, 1e-5)
    for name, values in parameters.items():
        assert_close(values, expected[name], 1e-4, name)
    norms = 7  # two of the encoder's layer, three of the decoder's, and one at the end of each
    assert launched(launches) == {
        **dict.fromkeys(LAYER_NORM, norms), **dict.fromkeys(GELU, 2), **dict.fromkeys(CROSS_ENTROPY, 1),
        "adam": 1, "squares_of_chunks": 1, "scale_gradients": 1,
    }  # fmt: skip
    for module in (F, losses, nn.optim.adam, kernels.parameters):
        monkeypatch.setattr(module, "are_taken", lambda *arrays: False)
    _, _, without = train("cuda", steps=1)
    assert not launched(without) and launches.total() < 0.4 * without.total()
