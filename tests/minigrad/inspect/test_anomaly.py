"""detect_anomaly(): the first NaN or infinity is an error that names operation, direction, line and module."""

import math
import threading
from pathlib import Path

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from models import Transformer
from tests.support import leaf

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the faults planted here


def line_of(mark: str) -> int:
    """The number of the line in this file that ends with the comment `# mark`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return number


def message_of(function) -> str:
    with pytest.raises(mg.AnomalyError) as caught, mg.detect_anomaly():
        function()
    return str(caught.value)


def assert_named(message: str, operation: str, mark: str, *more: str) -> None:
    place = f'File "{__file__}", line {line_of(mark)}, in '
    assert message.startswith(operation), message
    for part in (place, *more):
        assert part in message, message


@mg.op
def scaled_wrongly(x):
    """x, whose gradient is NaN where it is above 1."""
    return x * 1.0, lambda g: g * np.where(x > 1, math.nan, 1.0)


@mg.op
def nan_on_tensors(x):
    """x, whose gradient is NaN, on Tensors too."""
    return x * 1.0, lambda g: g * math.nan


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x * 2).sum()


class Inner(nn.Module):
    def forward(self, x):
        return (x - 5).sqrt()  # in a module


# ---- forward ---------------------------------------------------------------------------------------------------------


def test_a_nan_made_forward():
    def run():
        x = leaf([4.0, -1.0, -9.0])
        y = x * 2
        z = y.sqrt()  # planted forward
        return (z * 3).sum()

    assert_named(
        message_of(run),
        "sqrt made 2 NaN in its value of shape (3,), forward",
        "planted forward",
        "z = y.sqrt()",
        "its input x: shape (3,), float64, from -18 to 8",
    )


def test_an_infinity_made_of_finite_numbers():
    assert message_of(lambda: leaf([1000.0]).exp()).startswith("exp made 1 inf")
    assert message_of(lambda: 1 / leaf([0.0, 1.0])).startswith("divide made 1 inf")
    assert "its input x: 1.0" in message_of(lambda: 1.0 / leaf([0.0]))
    assert message_of(lambda: mg.Tensor([1e30]) * 1e30).startswith("multiply made 1 inf")


def test_a_nan_made_of_infinities():
    assert message_of(lambda: leaf([math.inf]) - leaf([math.inf])).startswith("subtract made 1 NaN")


def test_both_are_counted():
    message = message_of(lambda: leaf([0.0, -1.0, 1.0]).log())
    assert "made 1 NaN and 1 inf" in message


def test_a_nan_that_came_in_is_not_blamed_on_the_operation():
    x = leaf([1.0, math.nan])
    message = message_of(lambda: x * 2)  # came in
    assert_named(message, "multiply passed on 1 NaN", "came in", "with 1 NaN", "came in with an input")
    assert "passed on" in message_of(lambda: leaf([1.0]).masked_fill(mg.Tensor([True]), math.nan))


def test_a_nan_that_is_left_out_is_none():
    with mg.detect_anomaly():
        x = leaf([1.0, math.nan])
        y = mg.where(mg.isnan(x), 0.0, x)
        y.sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]


def test_it_looks_without_grad_and_in_every_value_of_a_tuple():
    def without_grad():
        with mg.no_grad():
            leaf([-1.0]).log()  # without grad

    assert_named(message_of(without_grad), "log made 1 NaN", "without grad")
    assert "forward" in message_of(lambda: mg.Tensor([-1.0]).sqrt())
    assert "split passed on 1 NaN" in message_of(lambda: mg.Tensor([1.0, 2.0, math.nan]).split(1))


def test_infinities_of_masks_pass():
    with mg.detect_anomaly():
        scores = leaf(np.random.default_rng(0).standard_normal((4, 4)))
        hidden = mg.ones(4, 4).triu(1).bool()
        added = mg.zeros(4, 4, dtype=np.float64).masked_fill(hidden, -math.inf)
        for y in (
            scores.masked_fill(hidden, -math.inf).softmax(dim=-1),
            (scores + added).softmax(dim=-1),
            mg.where(hidden, -math.inf, scores).log_softmax(dim=-1).exp(),
            mg.pad(scores, (1, 1), value=-math.inf).logsumexp(dim=-1),
            F.scaled_dot_product_attention(scores, scores, scores, attn_mask=added),
            F.scaled_dot_product_attention(scores, scores, scores, is_causal=True),
        ):
            y.sum().backward()
        with mg.no_grad():
            mg.pad(scores, (1, 1), value=-math.inf)
    assert np.isfinite(scores.grad.numpy()).all()


def test_a_row_with_everything_hidden_is_found_where_its_softmax_makes_nan():
    scores = leaf([[1.0, 2.0]]).masked_fill(mg.Tensor([[True, True]]), -math.inf)
    message = message_of(lambda: scores.softmax(dim=-1))
    assert message.startswith("softmax made 2 NaN") and "with 2 inf" in message


# ---- backward --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "create_graph"), [(scaled_wrongly, False), (nan_on_tensors, False), (nan_on_tensors, True)]
)
def test_a_nan_made_in_a_pullback(operation, create_graph):
    def run():
        x = leaf([0.5, 2.0])
        y = operation(x.exp())  # planted backward
        z = (y * y).sum()
        z.backward(create_graph=create_graph)

    assert_named(
        message_of(run),
        f"the pullback of {operation.__name__} made",
        "planted backward",
        "in the gradient of its input x of shape (2,), backward",
        "the gradient that it was given: shape (2,), float64, from ",
    )


def test_an_infinity_made_in_a_pullback_under_grad():
    x = leaf([0.0, 1.0])
    message = message_of(lambda: mg.grad(x.sqrt().sum(), [x]))
    assert message.startswith("the pullback of sqrt made 1 inf")


def test_the_input_is_named():
    x, y = leaf([[1.0]]), leaf([0.0])
    message = message_of(lambda: (x**y + mg.where(x > 5, x, y.abs().sqrt())).sum().backward())
    assert "the pullback of sqrt" in message
    parts = [leaf([1.0]), leaf([2.0])]

    @mg.op
    def joined(*xs):
        return xs[0] + xs[1], (lambda g: g, lambda g: g / 0.0)

    assert "in the gradient of its input 1 of shape (1,)" in message_of(lambda: joined(parts).sum().backward())


def test_around_backward_alone_the_line_is_not_known():
    y = leaf([0.0]).sqrt().sum()
    message = message_of(y.backward)
    assert message.startswith("the pullback of sqrt made 1 inf")
    assert "its line is not known: run the forward inside detect_anomaly() as well" in message


def test_the_line_is_known_from_tracing():
    with mg.tracing():
        y = leaf([0.0]).sqrt().sum()  # traced before
    assert_named(message_of(y.backward), "the pullback of sqrt made 1 inf", "traced before")


def test_a_gradient_that_was_given_is_not_blamed_on_the_pullback():
    x = leaf([1.0], np.float32)
    message = message_of(lambda: (x * 2).backward(mg.Tensor([math.nan])))
    assert message.startswith("the pullback of multiply passed on 1 NaN")
    assert "it was given to backward() or grad()" in message


def test_what_a_pullback_leaves_out_on_its_way_is_none():
    @mg.op
    def safe_sqrt(x):
        library = mg.namespace(x)
        y = library.sqrt(x)
        return y, lambda g: library.where(y == 0, 0.0, g / (2 * y))

    x = leaf([0.0, 4.0])
    with mg.detect_anomaly():
        (g,) = mg.grad(safe_sqrt(x).sum(), [x], create_graph=True)
    assert g.tolist() == [0.0, 0.25]


def test_after_an_error_in_a_pullback_the_forward_is_looked_at_again():
    @mg.op
    def broken(x):
        def pullback(g):
            raise ZeroDivisionError

        return x * 1, pullback

    def run():
        with pytest.raises(ZeroDivisionError):
            broken(leaf([1.0])).sum().backward()
        leaf([-1.0]).sqrt()  # after an error

    assert_named(message_of(run), "sqrt made 1 NaN", "after an error")


def test_the_graph_can_be_walked_again_after_an_anomaly():
    x = leaf([0.0, 1.0])
    y = x.sqrt().sum()
    message_of(lambda: y.backward(retain_graph=True))
    assert x.grad is None
    y.backward()
    assert x.grad.tolist() == [math.inf, 0.5]


# ---- modules ---------------------------------------------------------------------------------------------------------


def test_a_nan_in_an_operation_inside_a_module():
    message = message_of(lambda: Net()(leaf([1.0])))
    assert_named(message, "sqrt made 1 NaN", "in a module", "return (x - 5).sqrt()", "in the module inner, a Inner")
    message = message_of(lambda: Net()(leaf([2.5])).backward())
    assert_named(message, "the pullback of sqrt made 1 inf", "in a module", "in the module inner, a Inner")


def test_a_nan_deep_in_a_transformer():
    model = Transformer(9, 9, d_model=8, num_heads=2, d_ff=16, dropout=0.0)
    with mg.no_grad():
        model.decoder.layers[1].linear1.bias[0] = 1e38
        model.decoder.layers[1].linear2.weight[0, 0] = 1e38
    message = message_of(lambda: model([[3, 4, 5]], [[1, 5, 4]]))
    assert message.startswith("linear made 3 inf in its value of shape (1, 3, 8), forward"), message
    assert "in the module decoder.layers.1.linear2, a Linear" in message
    assert "nn/feed_forward.py" not in message and "models/stack.py" in message


def test_a_nan_in_the_outermost_module_of_a_walk():
    class Alone(nn.Module):
        def forward(self, x):
            return x.sqrt()

    assert "in the module (outermost), a Alone" in message_of(lambda: Alone()(leaf([-1.0])))


# ---- the block -------------------------------------------------------------------------------------------------------


def test_it_ends_with_the_block_and_decorates_functions():
    @mg.detect_anomaly()
    def run(x):
        """Documented."""
        return x.log()

    assert run.__doc__ == "Documented."
    for _ in range(2):
        with pytest.raises(mg.AnomalyError, match="log made 1 NaN"):
            run(leaf([-1.0]))
    assert np.isnan(leaf([-1.0]).log().item())
    assert run(leaf([1.0])).tolist() == [0.0]
    assert issubclass(mg.AnomalyError, RuntimeError)


def test_it_is_the_threads_own():
    found = {}

    def elsewhere():
        found["unwatched"] = leaf([-1.0]).sqrt().item()
        found["watched"] = message_of(lambda: leaf([-1.0]).sqrt())

    with mg.detect_anomaly():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(10)
    assert np.isnan(found["unwatched"]) and found["watched"].startswith("sqrt made 1 NaN")


def test_values_and_gradients_are_those_without_it():
    model = Transformer(9, 9, d_model=8, num_heads=2, d_ff=16, dropout=0.0)

    def gradients():
        loss = F.cross_entropy(model([[3, 4]], [[1, 5]])[0], [5, 2])
        return mg.grad(loss, list(model.parameters()))

    plain = gradients()
    with mg.detect_anomaly():
        watched = gradients()
    for a, b in zip(plain, watched, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
