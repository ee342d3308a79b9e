"""ParallelLoss: the gradients of the whole batch, whatever lies in which part; errors, and memory."""

import gc
import threading
import weakref

import numpy as np
import pytest

import minigrad as mg
import nn
from nn.optim import SGD, GradScaler
from tests.nn.parallel import FIVE, RNG, Loss, assert_same_gradients, batch_of
from tests.support import assert_close

pytestmark = pytest.mark.cpu_only(reason="a GPU takes each batch as a whole")

# ---- the gradients of the whole batch --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-6)])
@pytest.mark.parametrize(
    "examples, threads", [(5, 2), (5, 3), (4, 2), (2, 2), (1, 2), (5, 1), (3, 7)], ids=lambda n: str(n)
)
def test_the_gradients_are_those_of_the_whole_batch(dtype, tolerance, examples, threads):
    loss_of = Loss(dtype)
    batch = [ids[:examples] for ids in FIVE]
    expected = loss_of(*batch)[0]
    expected.backward()
    gradients = loss_of.gradients()
    assert gradients["unused"] is None

    loss = nn.ParallelLoss(loss_of, threads)(*batch)
    assert loss.shape == () and loss.dtype == expected.dtype
    assert_close(loss, expected, tolerance)
    loss.backward()
    assert_same_gradients(loss_of.gradients(), gradients, tolerance)


def test_a_part_of_padding_alone_counts_for_nothing():
    """Two of the three parts have no symbol to predict. A mean that is NaN of nothing does no harm."""
    loss_of = Loss()

    def loss_and_count(source, target):
        loss, count = loss_of(source, target)
        return loss if count else loss_of.model.unused.sum() * np.nan, count

    batch = batch_of(3, 3, 3), batch_of(0, 5, 0)
    expected = loss_of(*batch)[0]
    expected.backward()
    gradients = loss_of.gradients()
    loss = nn.ParallelLoss(loss_and_count, threads=3)(*batch)
    assert_close(loss, expected, 1e-12)
    loss.backward()
    assert_same_gradients(loss_of.gradients(), gradients, 1e-12)


def test_a_batch_of_padding_alone():
    loss_of = Loss()
    loss = nn.ParallelLoss(loss_of, threads=2)(batch_of(3, 3), batch_of(0, 0))
    loss.backward()
    assert loss.item() == 0
    assert all(not g.any() for name, g in loss_of.gradients().items() if name != "unused")


def test_gradients_are_added_to_what_there_is():
    loss_of = Loss()
    for _ in range(2):
        loss_of(*FIVE)[0].backward()
    expected = loss_of.gradients()
    parallel = nn.ParallelLoss(loss_of, threads=2)
    for _ in range(2):
        parallel(*FIVE).backward()
    assert_same_gradients(loss_of.gradients(), expected, 1e-12)


def test_the_loss_is_a_tensor_like_any_other():
    """It can be computed with and be given to grad(); within a part there are gradients of gradients."""
    x = mg.Tensor(RNG.standard_normal((5, 3)), requires_grad=True)
    w = mg.Tensor(RNG.standard_normal(3), requires_grad=True)

    def loss_and_count(x):
        loss = (x @ w).exp().mean()
        (slope,) = mg.grad(loss, [w], create_graph=True)
        return loss + (w * slope).sum(), len(x)

    expected, found = loss_and_count(x)[0], nn.ParallelLoss(loss_and_count, threads=2)(x)
    for ours, theirs in zip(*[mg.grad(loss * loss + w.sum(), [x, w]) for loss in (found, expected)], strict=True):
        assert_close(ours, theirs, 1e-12)


def test_what_was_computed_before_the_call():
    """Gradients go on from values that the parts share, and from an argument that is no leaf."""
    x = mg.Tensor(RNG.standard_normal((5, 3)), requires_grad=True)
    w = mg.Tensor(RNG.standard_normal(3), requires_grad=True)

    def gradients(threads):
        shared, rows = w.exp(), x.tanh()
        loss = nn.ParallelLoss(lambda rows: ((rows * shared).sum(dim=1).mean() + shared[0], len(rows)), threads)(rows)
        return mg.grad(loss, [x, w])

    for ours, theirs in zip(gradients(2), gradients(1), strict=True):
        assert_close(ours, theirs, 1e-12)


def test_a_loss_that_was_made_elsewhere():
    w = mg.Tensor(2.0, requires_grad=True)
    for loss in (w, w.exp(), w * 0 + 5):
        found = nn.ParallelLoss(lambda x, loss=loss: (loss, len(x)), threads=2)(np.ones(5))
        assert found.item() == loss.item()
        assert_close(mg.grad(found, w, retain_graph=True)[0], mg.grad(loss, w)[0], 1e-6)


def test_a_hook_of_a_parameter_sees_the_whole_gradient_once():
    loss_of = Loss()
    loss_of(*FIVE)[0].backward()
    expected = loss_of.gradients()
    seen = []
    weight = loss_of.model.encoder.layers[0].linear1.weight
    weight.register_hook(lambda g: seen.append((threading.current_thread(), g.numpy())))
    nn.ParallelLoss(loss_of, threads=2)(*FIVE).backward()
    ((thread, gradient),) = seen
    assert thread is threading.current_thread()
    assert_close(gradient, expected["encoder.layers.0.linear1.weight"], 1e-12)


def test_nothing_is_recorded_under_no_grad():
    loss_of = Loss()
    expected = loss_of(*FIVE)[0]
    with mg.no_grad():
        loss = nn.ParallelLoss(loss_of, threads=2)(*FIVE)
    assert not loss.requires_grad
    assert_close(loss, expected, 1e-12)


def test_a_loss_scaled_up_for_float16():
    loss_of = Loss("float32")
    loss_of(*FIVE)[0].backward()
    expected = loss_of.gradients()
    scaler, optimizer = GradScaler(), SGD(loss_of.model.parameters(), lr=0.1)
    scaler.scale(nn.ParallelLoss(loss_of, threads=2)(*FIVE)).backward()
    scaler.unscale_(optimizer)
    assert_same_gradients(loss_of.gradients(), expected, 1e-6)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_in_a_part_is_raised_when_all_have_ended(place):
    loss_of, ended = Loss(), []

    def loss_and_count(source, target, part):
        if part[0] == place:
            raise ArithmeticError("one")
        result = loss_of(source, target)
        ended.append(int(part[0]))
        return result

    source, target = (ids[:3] for ids in FIVE)
    with pytest.raises(ArithmeticError, match=r"(?m)^one$") as caught:
        nn.ParallelLoss(loss_and_count, threads=3)(source, target, np.arange(3))
    assert caught.value.__notes__ == [f"in part {place + 1} of 3"]
    assert sorted(ended) == [part for part in range(3) if part != place]
    loss = nn.ParallelLoss(loss_of, threads=3)(source, target)  # the threads are as good as new
    loss.backward()


def test_an_error_on_the_way_back_leaves_no_gradient():
    x, w = (mg.Tensor(np.ones(4), requires_grad=True) for _ in range(2))

    def fail(gradient):
        raise ArithmeticError("back")

    def loss_and_count(part, last):
        y = part * w[0]
        if last[0]:
            y.register_hook(fail)
        return y.mean(), len(part)

    loss = nn.ParallelLoss(loss_and_count, threads=2)(x, np.array([0, 0, 1, 1]))
    with pytest.raises(ArithmeticError, match=r"(?m)^back$") as caught:
        loss.backward()
    assert "in part 2 of 2" in caught.value.__notes__
    assert x.grad is None and w.grad is None


def test_a_parameter_written_over_before_the_walk():
    w = mg.Tensor(np.ones(3), requires_grad=True)
    loss = nn.ParallelLoss(lambda x: ((mg.Tensor(x) * w).sum(), 1), threads=2)(np.ones((2, 3)))
    with mg.no_grad():
        w -= 1
    with pytest.raises(RuntimeError, match="was changed in place after the operation"):
        loss.backward()
    assert w.grad is None


def test_a_second_walk_is_refused():
    w = mg.Tensor(np.ones(3), requires_grad=True)
    loss = nn.ParallelLoss(lambda x: ((mg.Tensor(x) * w).sum(), 1), threads=2)(np.ones((2, 3)))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a sum of parts can be differentiated once, with retain_graph=True too"):
        loss.backward()
    assert w.grad.numpy().tolist() == [1, 1, 1]


def test_gradients_of_gradients_are_refused():
    w = mg.Tensor(np.ones(3), requires_grad=True)
    loss = nn.ParallelLoss(lambda x: ((mg.Tensor(x) * w).sum(), 1), threads=2)(np.ones((2, 3)))
    with pytest.raises(RuntimeError, match=r"a sum of parts has no gradients of gradients \(create_graph=True\)"):
        mg.grad(loss, w, create_graph=True)


def test_parts_within_parts():
    inner = nn.ParallelLoss(lambda x: (mg.Tensor(0.0), 1), threads=2)
    outer = nn.ParallelLoss(lambda x: (inner(x), 1), threads=2)
    with pytest.raises(RuntimeError, match="a part cannot be computed in parts again: call ParallelLoss outside"):
        outer(np.arange(4))


@pytest.mark.parametrize("threads", [0, -1, 129, 2.0, True, "2", None])
def test_threads_without_sense(threads):
    with pytest.raises(ValueError, match=f"^ParallelLoss: threads must be an integer from 1 to 128, got {threads!r}$"):
        nn.ParallelLoss(lambda x: x, threads)


@pytest.mark.parametrize(
    "batch, error, message",
    [
        ((), TypeError, r"^ParallelLoss: give the batch, one array or more$"),
        (([1, 2],), TypeError, r"^ParallelLoss: argument 0 must be an array or a Tensor, not list$"),
        ((np.ones(3), None), TypeError, r"^ParallelLoss: argument 1 must be an array or a Tensor, not NoneType$"),
        ((np.ones((4, 2)), np.ones((2, 4))), ValueError, r"must be equally long.*got shapes \(4, 2\), \(2, 4\)\. What"),
        ((np.ones(()),), ValueError, r"must be equally long, as they are the examples; got shapes \(\)\. What all"),
    ],
)
def test_a_batch_that_cannot_be_split(batch, error, message):
    with pytest.raises(error, match=message):
        nn.ParallelLoss(lambda *x: (mg.Tensor(0.0), 1), threads=2)(*batch)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "result, error, message",
    [
        (mg.Tensor(1.0), TypeError, r"must return \(loss, count\), the mean loss and over how many.*, not Tensor$"),
        ((1.0, 1), TypeError, r"^ParallelLoss: the loss must be a floating Tensor without axes, not float$"),
        ((mg.ones(1), 1), TypeError, r"^ParallelLoss: the loss must be .*, not float32 \(1,\)$"),
        ((mg.Tensor(1), 1), TypeError, r"^ParallelLoss: the loss must be .*, not int64 \(\)$"),
        ((mg.Tensor(1.0), "1"), TypeError, r"^ParallelLoss: the count must be a number, got str$"),
        ((mg.Tensor(1.0), -1), ValueError, r"^ParallelLoss: the count must be a finite number, 0 or more, got -1$"),
        ((mg.Tensor(1.0), np.nan), ValueError, r"^ParallelLoss: the count must be .*, got nan$"),
    ],
)
def test_a_result_that_is_no_loss_and_count(threads, result, error, message):
    with pytest.raises(error, match=f"(?m){message}"):  # a line says in which part
        nn.ParallelLoss(lambda x: result, threads)(np.ones(4))


def test_a_loss_on_a_gpu():
    class Elsewhere(mg.Tensor):
        device = "cuda:0"

    def loss_and_count(x):
        return Elsewhere(1.0), 1

    assert nn.ParallelLoss(loss_and_count, threads=1)(np.ones(2)).item() == 1
    with pytest.raises(mg.DeviceError, match=r"(?m)^ParallelLoss: the loss is on cuda:0; threads are for the CPU, use"):
        nn.ParallelLoss(loss_and_count, threads=2)(np.ones(2))


def test_a_count_may_be_a_tensor():
    loss = nn.ParallelLoss(lambda x: (mg.Tensor(float(x[0])), mg.Tensor(x).sum()), threads=2)(np.array([1, 3]))
    assert loss.item() == pytest.approx((1 * 1 + 3 * 3) / 4)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_the_graph_is_freed_on_the_way():
    w = mg.Tensor(np.ones((3, 3)), requires_grad=True)
    freed = []

    def loss_and_count(x):
        y = mg.Tensor(x) @ w
        z = y.exp()
        y.register_hook(lambda g: freed.append(z.node.pullbacks is None))
        return z.mean(), 1

    nn.ParallelLoss(loss_and_count, threads=2)(np.ones((2, 3))).backward()
    assert freed == [True, True]


@pytest.mark.parametrize("walked", [True, False], ids=["walked", "dropped"])
def test_nothing_is_kept_alive_without_the_collector(walked):
    w = mg.Tensor(np.ones((3, 3)), requires_grad=True)
    made = []

    def loss_and_count(x):
        y = mg.Tensor(x) @ w
        made.append(weakref.ref(y.node))
        return y.exp().mean(), 1

    gc.collect()
    gc.disable()
    try:
        loss = nn.ParallelLoss(loss_and_count, threads=3)(np.ones((3, 3)))
        assert all(node() is not None for node in made)
        if walked:
            loss.backward()
        del loss
        assert [node() for node in made] == [None] * 3
    finally:
        gc.enable()
