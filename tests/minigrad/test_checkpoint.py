"""checkpoint: the same values and gradients as without it, and fewer arrays kept."""

import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad import Tensor, ops
from minigrad.ops import relu
from models.stack import DecoderLayer, EncoderLayer
from nn.rooms import attention_room
from tests.support import assert_close, leaf

RNG = np.random.default_rng(0)


def direct(fn, *args, **kwargs):
    return fn(*args, **kwargs)


def normal(*shape):
    return np.asarray(RNG.standard_normal(shape))


# ---- the same gradients ----------------------------------------------------------------------------------------------

X, Y, W = normal(3, 4), normal(3, 4), normal(4, 4)


def closure_of(call, x, h):
    return call(lambda x: (x * h).tanh(), x)


def chosen(values, places):
    return values[places]


# name: a function of (checkpoint or direct, leaves x, y, w) to one element
USES = {
    "an argument and a closure": lambda call, x, y, w: call(lambda x: (x @ w).tanh(), x).sum(),
    "closures alone": lambda call, x, y, w: call(lambda: (x @ w).tanh()).sum(),
    "a closure that is no leaf": lambda call, x, y, w: closure_of(call, x, (y @ w).exp()).sum(),
    "an argument computed from another": lambda call, x, y, w: call(lambda a, b: a * b * w[0], x, x.exp()).sum(),
    "the same argument twice": lambda call, x, y, w: call(lambda a, b: a * b.exp(), x, x).sum(),
    "beside a use outside": lambda call, x, y, w: (x * call(lambda x: x * x @ w, x) + x).sum(),
    "twice in a row": lambda call, x, y, w: call(lambda x: (x @ w).sin(), call(lambda x: (x * y).cos(), x)).sum(),
    "nested": lambda call, x, y, w: call(lambda x: call(lambda x: (x @ w).sin(), x * y).cos() * x, x).sum(),
    "a tuple": lambda call, x, y, w: sum(z.sum() for z in call(lambda x, y: (x @ w, x * y, y.exp()), x, y)),
    "a tuple of one": lambda call, x, y, w: call(lambda x: (x.exp(),), x)[0].sum(),
    "an output times 0": lambda call, x, y, w: (lambda z: (z[0] + 0 * z[1]).sum())(call(lambda: (x @ w, y.exp()))),
    "everything times 0": lambda call, x, y, w: call(lambda x: (x @ w).exp(), x).sum() * 0,
    "its own argument returned": lambda call, x, y, w: sum(z.sum() for z in call(lambda x, h: (x, h, x * h), x, x @ w)),
    "a view": lambda call, x, y, w: (call(lambda x: x.reshape(4, 3), x * y) ** 2).sum(),
    "arguments without gradients": lambda call, x, y, w: call(lambda a, b: a @ w * b, x.detach(), y.detach()).sum(),
    "keyword and other arguments": lambda call, x, y, w: call(
        lambda x, power, *, other, scale: (x**power * other * scale).tanh(), x, 3, other=y, scale=0.5
    ).sum(),
    "arrays and lists": lambda call, x, y, w: call(
        lambda a, xs: (a * xs[0] * xs[1]).sum(), mg.Tensor(Y).data, [x, w[:3]]
    ),
    "an operation with two values": lambda call, x, y, w: call(lambda x: x.max(dim=1)[0] * x[:, 0], x).sum(),
    "an integer output": lambda call, x, y, w: chosen(*call(lambda x: ((x @ w).sum(1), x.argmax(0)), x)).sum(),
    "a fused operation": lambda call, x, y, w: call(
        lambda x, h: F.scaled_dot_product_attention(x @ w, h, y), x, x.exp()
    ).sum(),
}  # fmt: skip


def leaves():
    return leaf(X), leaf(Y), leaf(W)


def assert_same(ours, theirs, tolerance):
    """Equal up to the order in which a leaf's gradients are added up, which is that of the segments; or both None."""
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert_close(ours, theirs, tolerance)


@pytest.mark.parametrize("name", USES)
def test_gradients_are_those_without_it(name):
    use = USES[name]
    plain, tried = leaves(), leaves()
    expected, found = use(direct, *plain), use(mg.checkpoint, *tried)
    assert found.item() == expected.item()
    wanted = mg.grad(expected, plain, retain_graph=True, allow_unused=True)
    got = mg.grad(found, tried, retain_graph=True, allow_unused=True)
    for ours, theirs in zip(got, wanted, strict=True):
        assert_same(ours, theirs, 1e-15)
    expected.backward()
    found.backward()
    for ours, theirs in zip(tried, plain, strict=True):
        assert_same(ours.grad, theirs.grad, 1e-15)


@pytest.mark.parametrize("name", USES)
def test_gradients_of_gradients_are_those_without_it(name):
    results = []
    for call in (direct, mg.checkpoint):
        inputs = leaves()
        value = USES[name](call, *inputs)
        for _ in range(2):
            slopes = mg.grad(value, inputs, create_graph=True, allow_unused=True)
            value = sum((slope**2).sum() for slope in slopes if slope is not None)
            if not value.requires_grad:  # of a linear function
                break
        else:
            slopes = mg.grad(value, inputs, allow_unused=True)
        results.append([mg.zeros_like(x) if slope is None else slope for x, slope in zip(inputs, slopes, strict=True)])
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, 1e-12)


def test_a_value_that_is_gone_is_computed_again():
    results = []
    for call in (direct, mg.checkpoint):
        x, _, w = leaves()
        y = call(lambda x, w=w: (x @ w).sin(), x)
        z = (y * y).sum()
        del y
        (slope,) = mg.grad(z, x, create_graph=True)
        results.append(mg.grad((slope**2).sum(), [x, w]))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, 1e-12)


def test_an_unused_output_gives_zero_whatever_its_slope():
    x, y = leaf([0.0, 4.0]), leaf([0.0, 4.0])
    doubled, _ = mg.checkpoint(lambda: (x * 2, x.sqrt() * y.sqrt()))
    doubled.sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert y.grad.tolist() == [0, 0]


def test_a_gradient_of_zero_meets_a_slope_of_infinity_as_without_it():
    for call in (direct, mg.checkpoint):
        x = leaf([0.0, 4.0])
        with np.errstate(invalid="ignore"):
            (call(lambda x: x.sqrt(), x) * 0).sum().backward()
        assert np.isnan(x.grad[0].item()) and x.grad[1].item() == 0


def test_a_value_that_only_fn_held_is_gone_the_second_time():
    held, x = [leaf([1.0, 2.0]).exp()], leaf([3.0, 4.0])
    y = mg.checkpoint(lambda: held.pop() * x if held else x * 1.0)
    assert_close(y, np.exp([1.0, 2.0]) * [3.0, 4.0], 1e-15)
    with pytest.raises(RuntimeError, match="run again for its gradients, gives other values"):
        y.sum().backward()


def test_transforms_of_checkpointed_functions():
    def several(x):
        return (x @ mg.Tensor(W)).softmax(-1)

    def single(x):
        return (several(x) ** 3).sum()

    for transform, function in ((mg.jvp, several), (mg.vjp, several), (mg.hvp, single), (mg.vhp, single)):
        found = transform(lambda x, function=function: mg.checkpoint(function, x), X, Y)
        for ours, expected in zip(found, transform(function, X, Y), strict=True):
            assert_close(ours, expected, 1e-12)
    found = mg.jvp(lambda x: mg.checkpoint(lambda x: (several(x), x.exp()), x), X, Y)[1]
    for ours, expected in zip(found, mg.jvp(lambda x: (several(x), x.exp()), X, Y)[1], strict=True):
        assert_close(ours, expected, 1e-12)
    assert_close(mg.jacobian(lambda x: mg.checkpoint(several, x), X), mg.jacobian(several, X), 1e-12)


def test_a_parameters_hook_is_called_once():
    x, _, w = leaves()
    seen = []
    w.register_hook(lambda g: seen.append(g) or g * 10)
    mg.checkpoint(lambda x: x @ w, x).sum().backward()
    assert len(seen) == 1
    assert w.grad.tolist() == (X.T @ np.ones((3, 4)) * 10).tolist()


# ---- modules and random numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [EncoderLayer, DecoderLayer])
@pytest.mark.parametrize("room", ["plain", "fused"])
def test_a_transformer_layer_with_dropout_to_the_bit(make, room):
    mg.manual_seed(0)
    layer = make(8, 2, 16, dropout=0.3)
    x, memory = Tensor(normal(2, 5, 8), True, np.float32), Tensor(normal(2, 6, 8), True, np.float32)
    inputs = (x,) if make is EncoderLayer else (x, memory)
    results = []
    for call in (direct, mg.checkpoint):
        mg.manual_seed(1)
        layer.zero_grad()
        x.grad = memory.grad = None
        with attention_room(room):
            y = call(layer, *inputs)
            after = mg.rand(2)  # the stream goes on alike
            (y**2).sum().backward()
        following = mg.rand(2)
        results.append([t.tolist() for t in (y, after, following, *(p.grad for p in (*inputs, *layer.parameters())))])
    assert results[0] == results[1]


def test_dropout_differs_between_calls():
    x = leaf(np.ones(100))
    first, second = (mg.checkpoint(F.dropout, x, 0.5) for _ in range(2))
    assert first.tolist() != second.tolist()
    (first + 10 * second).sum().backward()
    assert x.grad.tolist() == (first + 10 * second).tolist()


def test_going_back_in_another_thread():
    x = leaf(np.ones(100))
    y = mg.checkpoint(F.dropout, x, 0.5)
    thread = threading.Thread(target=lambda: y.sum().backward())
    thread.start()
    thread.join()
    assert x.grad.tolist() == y.tolist()


def test_another_room_on_the_way_back():
    """The values differ by rounding: no reason to refuse."""
    x, y, w = (Tensor(values, True, np.float32) for values in (X, Y, W))

    def attention(x):
        return F.scaled_dot_product_attention(x @ w, y, y)

    with attention_room("plain"):
        found = mg.checkpoint(attention, x)
    found.sum().backward()
    expected = mg.grad(attention(x).sum(), [x, w])
    assert_close(x.grad, expected[0], 1e-5)
    assert_close(w.grad, expected[1], 1e-5)


def test_a_frozen_module_and_no_grad():
    module = nn.Linear(3, 2).requires_grad_(False)
    assert not mg.checkpoint(module, Tensor(np.ones((1, 3)))).requires_grad
    with mg.no_grad():
        assert not mg.checkpoint(lambda x: x * 2, leaf([1.0])).requires_grad
        assert mg.checkpoint(lambda x: [x, "anything"], 3) == [3, "anything"]


def test_a_named_tuple_comes_back_as_a_plain_one():
    x = leaf([2.0, 1.0])
    assert type(x.sort()) is not tuple
    found = mg.checkpoint(lambda x: x.sort(), x)
    assert type(found) is tuple
    assert [y.tolist() for y in found] == [[1, 2], [1, 0]]


# ---- what is kept ----------------------------------------------------------------------------------------------------


def layers(x, count, seen=None):
    for _ in range(count):
        x = (x * 1.01).tanh()
        if seen is not None:
            seen += [weakref.ref(x), weakref.ref(x.memory)]
    return x


def test_nothing_of_the_graph_is_kept():
    x, seen = leaf(np.ones(3)), []
    gc.disable()
    try:
        y = mg.checkpoint(layers, x, 5, seen)
        value, total = weakref.ref(y.data), y.sum()
        del y
        assert value() is None
        assert all(reference() is None for reference in seen)
        total.backward()
        assert len(seen) == 20
        assert all(reference() is None for reference in seen)
    finally:
        gc.enable()


def peak_of(function):
    """The most memory that is taken during a call, in bytes."""
    function()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_deep_chain_in_segments_needs_the_square_root_of_the_memory():
    """64 layers keep an array each at least; 8 segments one each, and the one that is run again 8 for its layers."""
    x = leaf(np.full(20_000, 0.5))

    def train(call):
        y = x
        for _ in range(8):
            y = call(layers, y, 8)
        return mg.grad(y.sum(), x)[0]

    assert train(mg.checkpoint).tolist() == train(direct).tolist()
    array = x.data.nbytes
    assert peak_of(lambda: train(direct)) > 64 * array
    assert peak_of(lambda: train(mg.checkpoint)) < (8 + 8 + 8) * array


def test_comparing_a_large_output_takes_little_memory():
    x = Tensor(np.ones(2**21), True, np.float32)
    assert peak_of(lambda: mg.checkpoint(lambda: x * 2)) < 1.2 * x.data.nbytes


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_fn_must_return_tensors():
    for wrong, name in ((lambda x: [x], "output 0 is list"), (lambda x: (x, None), "output 1 is NoneType")):
        with pytest.raises(TypeError, match=f"checkpoint: fn must return a Tensor or a tuple of Tensors; its {name}"):
            mg.checkpoint(wrong, leaf([1.0]))


@pytest.mark.parametrize("changed", ["argument", "constant argument", "closure", "what only an unrecorded step reads"])
def test_what_is_written_over_in_between_is_noticed(changed):
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    scale, mask = Tensor([1.0, 2.0], dtype=np.float64), Tensor([1, 0])
    y = mg.checkpoint(lambda x, scale: mg.where(mask > 0, x * w, x) * scale, x, scale)
    with mg.no_grad():
        target = {"argument": x, "constant argument": scale, "closure": w}.get(changed, mask)
        target.copy_(target)
    with pytest.raises(RuntimeError, match="changed in place after the"):
        y.sum().backward()
    assert x.grad is None and w.grad is None


@pytest.mark.cpu_only(reason="an argument is an array of NumPy that its owner changes")
def test_an_array_argument_may_be_edited():
    x, a = leaf([1.0, 2.0]), np.array([3.0, 4.0])
    y = mg.checkpoint(lambda x, a, *, b: x * a * b, x, a, b=a)
    a[:] = 0
    y.sum().backward()
    assert x.grad.tolist() == [9, 16]


def test_what_fn_writes_into_its_own_tensors_is_its_own_affair():
    def fn(x):
        scale = mg.zeros(2, dtype=np.float64)
        doubled = scale * 2  # reads it before it is written
        scale[0] = 3.0
        return x * scale + doubled

    x = leaf([1.0, 2.0])
    mg.checkpoint(fn, x).sum().backward()
    assert x.grad.tolist() == [3, 0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_other_values_the_second_time_are_an_error(create_graph):
    mg.manual_seed(0)
    dropout, x = nn.Dropout(0.5), leaf(np.ones(100))
    y = mg.checkpoint(dropout, x)
    dropout.eval()
    with pytest.raises(RuntimeError, match="checkpoint: fn, run again for its gradients, gives other values"):
        mg.grad(y.sum(), x, create_graph=create_graph)
    shapes = iter([2, 3])
    y = mg.checkpoint(lambda: x[: next(shapes)])
    with pytest.raises(RuntimeError, match="gives other values"):
        mg.grad(y.sum(), x, create_graph=create_graph)


def test_nan_and_infinity_are_the_same_values():
    x = leaf([np.nan, np.inf, 1.0])
    mg.checkpoint(lambda x: x * 2, x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_a_freed_graph_is_not_walked_twice():
    x = leaf([1.0, 2.0])
    y = mg.checkpoint(relu, x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="freed"):
        y.backward()


def test_an_error_in_the_second_run_names_the_operation():
    x, calls = leaf([1.0]), []

    def fn(x):
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("no second time")
        return ops.exp(x)

    y = mg.checkpoint(fn, x)
    mg.manual_seed(3)
    position = mg.random.stream_position()
    with pytest.raises(ValueError, match="no second time") as caught:
        y.backward()
    assert "in the pullback of checkpointed" in caught.value.__notes__[0]
    assert mg.random.stream_position() == position
    assert mg.is_grad_enabled()


CHANGES_OF_VALUES = {
    "one of a million": (2**20, np.float32, lambda a: a.__setitem__(1, 5.0)),
    "the last one": (2**20 - 1, np.float32, lambda a: a.__setitem__(-1, 1.1)),
    "one by a little": (2000, np.float64, lambda a: a.__setitem__(1234, 1 + 1e-11)),
    "one of float16": (2000, np.float16, lambda a: a.__setitem__(1234, 2)),
    "the order": (100_000, np.float32, lambda a: a.__setitem__(slice(500, 502), a[[501, 500]])),
    "an infinity": (2000, np.float32, lambda a: a.__setitem__(3, np.inf)),
    "a NaN": (2000, np.float32, lambda a: a.__setitem__(3, np.nan)),
    "integers": (2000, np.int64, lambda a: a.__setitem__(3, 2)),
}


@pytest.mark.parametrize("name", CHANGES_OF_VALUES)
def test_what_changes_in_an_array_in_a_closure_is_noticed(name):
    size, dtype, change = CHANGES_OF_VALUES[name]
    x, array = Tensor(np.ones(size), True, dtype if dtype != np.int64 else np.float64), np.ones(size, dtype)
    array[:1000:2] += dtype(1)
    y, _ = mg.checkpoint(lambda: (x * 1, Tensor(array)))
    change(array)
    with pytest.raises(RuntimeError, match="run again for its gradients, gives other values"):
        y.sum().backward()
    assert x.grad is None


READERS = {
    "a key": lambda x, places: x[places],
    "part of a key": lambda x, places: x[None, places],
    "gather": lambda x, places: x.gather(0, places),
    "index_select": lambda x, places: x.index_select(0, places),
    "take_along_dim": lambda x, places: x.take_along_dim(places, 0),
    "masked_select": lambda x, places: x.masked_select(places > 0),
    "embedding": lambda x, places: F.embedding(places, x.unsqueeze(1)),
    "scatter_add": lambda x, places: (x * 0).scatter_add(0, places, x),
}


@pytest.mark.parametrize("name", READERS)
def test_indices_that_are_written_over_are_noticed_though_the_values_are_the_same(name):
    x, places = leaf([5.0, 5.0]), Tensor([0, 1])
    y = mg.checkpoint(lambda x: READERS[name](x, places), x)
    places[0] = 1
    places[1] = 0
    with pytest.raises(RuntimeError, match="changed in place after the"):
        y.sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("whole", [True, False])
def test_a_tensor_that_takes_no_part_when_fn_is_run_again_is_an_error(whole):
    x, held = leaf([1.0, 2.0]), {"w": leaf([3.0, 4.0])}
    first = held["w"]
    y = mg.checkpoint(lambda: x * held["w"] if whole else held["w"] * 2)
    if whole:
        held["w"] = leaf([3.0, 4.0])  # the same values, another tensor
    else:
        first.requires_grad = False
    with pytest.raises(RuntimeError, match="checkpoint: 1 of the tensors that gradients flow to take no part"):
        y.sum().backward()
    assert first.grad is None


def test_anomaly_mode_names_the_line_in_fn_and_its_module_in_the_second_run_too():
    class Root(nn.Module):
        def forward(self, x):
            return (x - x).sqrt()  # here

    root, x = Root(), leaf([1.0])
    with np.errstate(divide="ignore", invalid="ignore"), mg.detect_anomaly(), pytest.raises(mg.AnomalyError) as error:
        mg.checkpoint(root, x).backward()
    assert "return (x - x).sqrt()  # here" in str(error.value) and "a Root" in str(error.value)
