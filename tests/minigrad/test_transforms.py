"""vjp, jvp, jacobian, hessian, hvp, vhp: against torch.autograd.functional; of attention; of a Transformer's loss."""

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad import Tensor
from models import Transformer
from nn.rooms import attention_room
from tests.support import as_array, assert_close, leaf, torch_or_skip

RNG = np.random.default_rng(0)


def normal(*shape):
    return np.asarray(RNG.standard_normal(shape))


# ---- against PyTorch -------------------------------------------------------------------------------------------------

# name: (function of a library and its tensors, the inputs' values). Functions of one input are given a single tensor.
FUNCTIONS = {
    "elementwise": (lambda lib, x: x.exp() * x, [normal(3)]),
    "a matrix to a vector": (lambda lib, x: (x @ x.mT).sum(0), [normal(2, 3)]),
    "softmax": (lambda lib, x: x.softmax(-1), [normal(2, 3)]),
    "a number": (lambda lib, x: x.tanh(), [normal()]),
    "one element": (lambda lib, x: (x**3).sum(0, keepdim=True), [normal(3)]),
    "two inputs": (lambda lib, x, y: x @ y, [normal(2, 3), normal(3)]),
    "two outputs": (lambda lib, x: (x.sin(), (x**2).sum()), [normal(3)]),
    "a tuple of one output": (lambda lib, x: (x.sin(),), [normal(3)]),
    "two and two": (lambda lib, x, y: (x * y.sum(), y.exp()), [normal(2), normal(3)]),
    "a constant output": (lambda lib, x, y: (x * x, lib.ones(2, dtype=lib.float64)), [normal(2), normal(1)]),
    "itself": (lambda lib, x: x, [normal(2)]),
}  # fmt: skip
SCALARS = {
    "cubes": (lambda lib, x: (x**3).sum(), [normal(3)]),
    "a number": (lambda lib, x: x.exp() * x, [normal()]),
    "one element": (lambda lib, x: (x**3).sum(0, keepdim=True), [normal(3)]),
    "a quadratic form": (lambda lib, x, a: x @ a @ x, [normal(3), normal(3, 3)]),
    "linear in one": (lambda lib, x, y: (x * y.exp()).sum(), [normal(3), normal(3)]),
    "linear": (lambda lib, x: x.sum(), [normal(2, 2)]),
    "constant in one": (lambda lib, x, y: x.softmax(0)[0], [normal(3), normal(2)]),
    "log-sum-exp": (lambda lib, x: x.logsumexp(-1).sum(), [normal(2, 3)]),
}


def both(function, values):
    """For each library its functional module, the function, the inputs' shape (one, or a tuple) and a maker of v."""
    torch = torch_or_skip()
    for library, doors, make in ((mg, mg, leaf), (torch, torch.autograd.functional, torch.tensor)):
        inputs = tuple(make(value) for value in values)
        yield doors, lambda *xs, lib=library: function(lib, *xs), inputs if len(inputs) > 1 else inputs[0], make


def flattened(nested):
    """The structure of nested tuples, and the arrays in it."""
    if isinstance(nested, tuple):
        parts = [flattened(part) for part in nested]
        return tuple(structure for structure, _ in parts), [array for _, arrays in parts for array in arrays]
    return None, [as_array(nested)]


def assert_same(ours, theirs):
    (structure, arrays), (expected_structure, expected) = flattened(ours), flattened(theirs)
    assert structure == expected_structure
    for found, wanted in zip(arrays, expected, strict=True):
        assert_close(found, wanted, 1e-10)


def vectors_like(value, make, seed=1):
    """Random v with the shapes of a tensor or of a tuple of them."""
    rng = np.random.default_rng(seed)
    if isinstance(value, tuple):
        return tuple(make(np.asarray(rng.standard_normal(tuple(x.shape)))) for x in value)
    return make(np.asarray(rng.standard_normal(tuple(value.shape))))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("transform", ["vjp", "jvp", "jacobian"])
def test_first_derivatives_are_pytorchs(transform, name):
    results = []
    for doors, function, inputs, make in both(*FUNCTIONS[name]):
        if transform == "jacobian":
            results.append(doors.jacobian(function, inputs))
            continue
        outputs = function(*inputs) if isinstance(inputs, tuple) else function(inputs)
        v = vectors_like(outputs if transform == "vjp" else inputs, make)
        results.append(getattr(doors, transform)(function, inputs, v))
    assert_same(*results)


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("transform", ["hessian", "hvp", "vhp"])
def test_second_derivatives_are_pytorchs(transform, name):
    results = []
    for doors, function, inputs, make in both(*SCALARS[name]):
        v = () if transform == "hessian" else (vectors_like(inputs, make),)
        results.append(getattr(doors, transform)(function, inputs, *v))
    assert_same(*results)


@pytest.mark.parametrize("transform", ["vjp", "jvp", "jacobian", "hessian", "hvp", "vhp"])
def test_create_graph_makes_results_differentiable_in_inputs_and_v(transform):
    torch = torch_or_skip()
    values, direction = normal(2, 3), normal(2, 3)
    results = []
    for library, doors, make in ((mg, mg, leaf), (torch, torch.autograd.functional, torch.tensor)):
        x, v = make(values), make(direction)
        x.requires_grad_(), v.requires_grad_()
        with_v = () if transform in ("jacobian", "hessian") else (v,)

        def function(x, several=transform in ("vjp", "jvp", "jacobian")):
            return x.softmax(-1) ** 2 if several else (x.softmax(-1) ** 3).sum()

        found = getattr(doors, transform)(function, x, *with_v, create_graph=True)
        found = found if isinstance(found, tuple) else (found,)
        loss = sum((part**2).sum() for part in found)
        grad = library.grad if library is mg else torch.autograd.grad
        results.append(tuple(grad(loss, [x, *with_v])))
    assert_same(*results)


def test_no_elements():
    """PyTorch's jacobian raises here."""
    x, v = leaf(np.zeros((0, 2))), np.zeros((0, 2))
    assert [result.shape for result in (*mg.vjp(mg.exp, x, v), *mg.jvp(mg.exp, x, v))] == [(0, 2)] * 4
    assert mg.jacobian(mg.exp, x).shape == (0, 2, 0, 2)
    assert mg.hessian(lambda x: x.exp().sum(), x).shape == (0, 2, 0, 2)


# ---- what is given, and what stays as it is --------------------------------------------------------------------------


def test_the_default_v_is_one():
    x = leaf(2.0)
    assert [result.item() for result in mg.vjp(lambda x: x**3, x)] == [8, 12]
    assert [result.item() for result in mg.jvp(lambda x: x**3, x)] == [8, 12]
    assert [result.item() for result in mg.hvp(lambda x: x**3, x)] == [8, 12]
    assert [result.item() for result in mg.vhp(lambda x: x**3, x)] == [8, 12]


def test_hvp_takes_the_gradients_jacobian_and_vhp_its_transpose():
    """They differ where second derivatives are not symmetric: d²/dxdy = 1 here, and d²/dydx = 0."""

    @mg.op
    def crooked(x, y):
        """x y, with a derivative by y that forgets x."""
        return x * y, (lambda g: g * y, lambda g: g * 3.0)

    x, y = leaf(5.0), leaf(7.0)
    one, zero = np.array(1.0), np.array(0.0)
    assert [[h.item() for h in row] for row in mg.hessian(crooked, (x, y))] == [[0, 1], [0, 0]]
    assert [h.item() for h in mg.hvp(crooked, (x, y), (zero, one))[1]] == [1, 0]
    assert [h.item() for h in mg.vhp(crooked, (x, y), (one, zero))[1]] == [0, 1]


def test_inputs_may_be_arrays_constants_or_the_same_tensor_twice():
    a = np.array([1.0, 2.0])
    outputs, found = mg.vjp(lambda x, y: (x * y).sum(), (a, Tensor([3.0, 4.0], dtype=np.float64)))
    assert outputs.item() == 11
    assert [g.tolist() for g in found] == [[3, 4], [1, 2]]
    x = leaf([1.0, 2.0])
    assert [g.tolist() for g in mg.vjp(lambda x, y: (x * x * y).sum(), (x, x))[1]] == [[2, 8], [1, 4]]


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_same_tensor_in_two_places_is_two_inputs(create_graph):
    x, v = leaf(3.0), (np.array(1.0), np.array(10.0))

    def f(x, y):
        return x * x * y  # derivatives 2xy = 18 and x² = 9; second ones 2y = 6, 2x = 6 and 0

    found = [transform(f, (x, x), create_graph=create_graph) for transform in (mg.vjp, mg.jacobian, mg.hessian)]
    (_, by_vjp), by_jacobian, by_hessian = found
    assert [[g.item() for g in gradients] for gradients in (by_vjp, by_jacobian)] == [[18, 9], [18, 9]]
    assert [[h.item() for h in row] for row in by_hessian] == [[6, 6], [6, 0]]
    assert mg.jvp(f, (x, x), v, create_graph=create_graph)[1].item() == 108
    for transform in (mg.hvp, mg.vhp):
        assert [h.item() for h in transform(f, (x, x), v, create_graph=create_graph)[1]] == [66, 6]


def test_no_leaf_is_touched():
    x, weight = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    constant = Tensor([1.0, 2.0], dtype=np.float64)
    for inputs in (x, constant):
        for transform in (mg.vjp, mg.hvp, mg.vhp):
            transform(lambda x: (x**2 * weight).sum(), inputs, *([] if transform is mg.vjp else [inputs]))
        mg.jacobian(lambda x: x * weight, inputs)
    assert x.grad is None and weight.grad is None
    assert not constant.requires_grad and constant.is_leaf


def test_results_have_no_graph_unless_it_is_asked_for():
    x = leaf([1.0, 2.0])
    for result in (*mg.vjp(lambda x: (x**3).sum(), x), *mg.hvp(lambda x: (x**3).sum(), x, x)):
        assert not result.requires_grad
    for result in (*mg.vjp(lambda x: (x**3).sum(), x, create_graph=True), mg.jacobian(mg.exp, x, create_graph=True)):
        assert result.requires_grad


def test_within_no_grad_they_work_as_outside():
    with mg.no_grad():
        assert mg.vjp(lambda x: x**2, leaf(3.0))[1].item() == 6
        assert not mg.is_grad_enabled()


def test_transforms_within_transforms():
    x = leaf([1.0, 2.0, 3.0])
    by_gradient = mg.jacobian(lambda x: mg.vjp(lambda x: (x**4).sum(), x, create_graph=True)[1], x)
    assert_close(by_gradient, np.diag(12 * np.array([1.0, 4.0, 9.0])), 1e-12)
    by_direction = mg.jvp(lambda x: mg.jvp(lambda x: x**3, x, x, create_graph=True)[1], x, np.ones(3))[1]
    assert_close(by_direction, 9 * np.array([1.0, 4.0, 9.0]), 1e-12)  # d/dx of 3x² x


def test_dtypes_are_the_inputs():
    x = Tensor([1.0, 2.0])
    for result in (mg.jacobian(mg.exp, x), mg.hessian(lambda x: x.exp().sum(), x), *mg.jvp(mg.exp, x, np.ones(2))):
        assert result.dtype == np.float32
    assert mg.jacobian(lambda x: x > 0, x).tolist() == [[0, 0], [0, 0]]  # a boolean output does not depend on x
    assert mg.jvp(lambda x: x > 0, x, x)[1].tolist() == [0, 0]


ERRORS = [
    (lambda x: mg.vjp(lambda x: x, [x, x]), TypeError, "vjp: inputs must be a Tensor, an array or a tuple of them; "
                                                       "input 0 is list"),
    (lambda x: mg.jacobian(lambda x, n: x, (x, Tensor([1]))), TypeError, "jacobian: input 1 is int64, which has no"),
    (lambda x: mg.vjp(lambda x: [x], x), TypeError, "vjp: func must return a Tensor or a tuple of Tensors; its output "
                                                    "0 is list"),
    (lambda x: mg.jvp(lambda x: (x, 1.0), x, x), TypeError, "its output 1 is float"),
    (lambda x: mg.vjp(lambda x: x, x), RuntimeError, "vjp: give v, of the output's shape"),
    (lambda x: mg.jvp(lambda x: x.sum(), x), RuntimeError, "jvp: give v, of the input's shape"),
    (lambda x: mg.hvp(lambda x: x.sum(), x), RuntimeError, "hvp: give v, of the input's shape"),
    (lambda x: mg.vjp(lambda x: x, x, x[:1]), RuntimeError, r"vjp: v has shape \(1,\), output 0 \(2,\); they must"),
    (lambda x: mg.hvp(lambda x: x.sum(), x, np.ones((1, 2))), RuntimeError, r"hvp: v has shape \(1, 2\), input 0"),
    (lambda x: mg.jvp(lambda x, y: x, (x, x), x), RuntimeError, "jvp: v must be 2 tensors, one an input; got 1"),
    (lambda x: mg.vjp(lambda x: x, x, [1.0, 1.0]), TypeError, "vjp: v must be a Tensor, an array or a tuple of them, "
                                                              "got list"),
    (lambda x: mg.hessian(lambda x: x, x), RuntimeError, r"hessian: func must return one tensor with one element, got "
                                                         r"shape \(2,\)"),
    (lambda x: mg.hvp(lambda x: (x.sum(), x), x, x), RuntimeError, r"hvp: func must .*, got shape \(\), \(2,\)"),
    (lambda x: mg.vhp(lambda x: x, x, x), RuntimeError, "vhp: func must return one tensor with one element"),
]  # fmt: skip


@pytest.mark.parametrize("call, kind, text", ERRORS)
def test_errors_say_what_is_wrong(call, kind, text):
    with pytest.raises(kind, match=text):
        call(leaf([1.0, 2.0]))


# ---- attention -------------------------------------------------------------------------------------------------------

HEAD = [normal(4, 3), normal(3, 2), normal(3, 2), normal(3, 2)]  # x (N, D), W_Q, W_K and W_V (D, d)
PROBE = normal(4, 2)  # weights of the head's outputs, in a function with one element


def our_head(x, w_query, w_key, w_value, is_causal):
    return F.scaled_dot_product_attention(x @ w_query, x @ w_key, x @ w_value, is_causal=is_causal)  # (N, d)


def pytorchs_head(torch, x, w_query, w_key, w_value, is_causal):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(
            (x @ w_query)[None], (x @ w_key)[None], (x @ w_value)[None], is_causal=is_causal
        )[0]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("room", ["plain", "fused"])
def test_the_jacobian_and_hessian_of_an_attention_head_are_pytorchs(room, is_causal):
    torch = torch_or_skip()
    theirs = tuple(torch.tensor(value) for value in HEAD)
    expected = torch.autograd.functional.jacobian(lambda *xs: pytorchs_head(torch, *xs, is_causal), theirs)
    expected_hessian = torch.autograd.functional.hessian(
        lambda *xs: (pytorchs_head(torch, *xs, is_causal) * torch.tensor(PROBE)).sum(), theirs
    )
    with attention_room(room):
        found = mg.jacobian(lambda *xs: our_head(*xs, is_causal), tuple(HEAD))
        found_hessian = mg.hessian(lambda *xs: (our_head(*xs, is_causal) * mg.Tensor(PROBE)).sum(), tuple(HEAD))
    for place, (ours, wanted) in enumerate(zip(found, expected, strict=True)):
        assert ours.shape == (4, 2, *HEAD[place].shape)
        assert_close(ours, wanted, 1e-10, f"the Jacobian by input {place}")
    for i, (row, wanted_row) in enumerate(zip(found_hessian, expected_hessian, strict=True)):
        for j, (ours, wanted) in enumerate(zip(row, wanted_row, strict=True)):
            assert ours.shape == HEAD[i].shape + HEAD[j].shape
            assert_close(ours, wanted, 1e-10, f"the Hessian's block {i}, {j}")


# ---- a Transformer ---------------------------------------------------------------------------------------------------

SOURCE = np.array([[3, 4, 5, 6], [7, 3, 0, 0]])
TARGET = np.array([[1, 4, 5, 2], [1, 7, 2, 0]])


@pytest.fixture
def transformer():
    mg.manual_seed(0)
    model = Transformer(9, 9, 8, 2, 1, 1, 12, dropout=0.0, activation="gelu", max_length=8)
    return model.to(np.float64)


def loss_of(model):
    """The loss of a model, or of anything that takes source and target ids to logits (B, N, V)."""
    logits = model(Tensor(SOURCE), Tensor(TARGET[:, :-1]))
    return F.cross_entropy(logits.reshape(-1, 9), Tensor(TARGET[:, 1:].reshape(-1)), ignore_index=0)


def as_function_of_parameters(model):
    """loss(*parameters), and the parameters' names."""
    names = [name for name, _ in model.named_parameters()]

    def loss(*weights):
        given = dict(zip(names, weights, strict=True))
        return loss_of(lambda *tokens: nn.functional_call(model, given, tokens))

    return loss, names


@pytest.mark.parametrize("transform", [mg.hvp, mg.vhp])
@pytest.mark.parametrize("room", ["plain", "fused"])
def test_the_hessian_vector_product_of_a_transformers_loss_matches_finite_differences(transformer, room, transform):
    loss, names = as_function_of_parameters(transformer)
    parameters = tuple(transformer.parameters())
    rng = np.random.default_rng(1)
    v = tuple(rng.standard_normal(p.shape) for p in parameters)

    def gradient(step):
        return mg.vjp(loss, tuple(p.numpy() + step * d for p, d in zip(parameters, v, strict=True)))[1]

    eps = 1e-5
    with attention_room(room):
        value, product = transform(loss, parameters, v)
        assert value.item() == loss_of(transformer).item()
        expected = [(a.numpy() - b.numpy()) / (2 * eps) for a, b in zip(gradient(eps), gradient(-eps), strict=True)]
    size = np.sqrt(sum(np.sum(x**2) for x in expected))
    assert size > 1
    for name, found, wanted in zip(names, product, expected, strict=True):
        assert found.shape == wanted.shape
        assert np.linalg.norm(found.numpy() - wanted) <= 1e-8 * size, name
    assert all(p.grad is None for p in parameters)


def test_the_product_is_what_two_walks_give(transformer):
    """Without transforms: the gradient of the gradient's product with v."""
    loss, names = as_function_of_parameters(transformer)
    parameters = tuple(transformer.parameters())
    v = tuple(np.random.default_rng(1).standard_normal(p.shape) for p in parameters)
    slopes = mg.grad(loss_of(transformer), parameters, create_graph=True)
    along = sum((slope * Tensor(direction)).sum() for slope, direction in zip(slopes, v, strict=True))
    expected = mg.grad(along, parameters, allow_unused=True)
    for name, found, wanted in zip(names, mg.vhp(loss, parameters, v)[1], expected, strict=True):
        assert_close(found, np.zeros(found.shape) if wanted is None else wanted, 1e-12, name)
