"""Every function of `nn.functional`, held against PyTorch's and against finite differences."""

import pytest
from hypothesis import strategies as st

import nn.functional as F
from tests.minigrad.ops.factory import Case, make_tests, normal, positive


def below(count):
    """Integers from 0 to count - 1: classes, or ids."""
    return lambda rng, shape: rng.integers(0, count, shape)


def of(name, *shapes, call=None, torch=None, **more):
    """A case of operands of the given shapes. `call` takes our `nn.functional` or PyTorch's."""
    call = call or (lambda lib, *x: getattr(lib, name)(*x))
    torch = torch or (lambda t, *x: call(t.nn.functional, *x))
    return Case(name, lambda _, *x: call(F, *x), st.just(shapes), torch=torch, **more)


def negative(rng, shape):
    return -positive(rng, shape)


def weights_of(t, query, key):
    return t.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, -1)


def loss(name, **more):
    """Cases of a loss of two tensors of one shape, as mean, sum and each."""
    return [
        of(name, (3, 4), (3, 4), call=lambda lib, x, y, how=how: getattr(lib, name)(x, y, reduction=how), **more)
        for how in ("mean", "sum", "none")
    ]


ARRAY = {"unlike": ["text"]}  # they take whatever has an array's attributes; of a string Python misses them
HEADS = ((2, 3, 4), (2, 5, 4), (2, 5, 4))  # query (H, N_q, d), key and value (H, N_k, d)

CASES = [
    of("linear", (2, 3), (4, 3), (4,)),
    of("linear", (2, 5, 3), (4, 3), unlike=["shapes"]),
    of("layer_norm", (2, 5), call=lambda lib, x: lib.layer_norm(x, (5,))),
    of("layer_norm", (2, 3, 4), (3, 4), (3, 4), call=lambda lib, x, w, b: lib.layer_norm(x, (3, 4), w, b), **ARRAY),
    of("rms_norm", (2, 5), call=lambda lib, x: lib.rms_norm(x, (5,))),
    of("rms_norm", (2, 3, 4), (4,), call=lambda lib, x, w: lib.rms_norm(x, (4,), w, eps=1e-3), **ARRAY),
    of("dropout", (2, 3), call=lambda lib, x: lib.dropout(x, 1.0), unlike=["integers"]),
    of("dropout", (2, 3), call=lambda lib, x: lib.dropout(x, 0.5, training=False) * 1.0),
    Case(
        "embedding", lambda _, ids, w: F.embedding(ids, w), st.just(((2, 3), (5, 4))),
        values=(below(5), normal), torch=lambda t, ids, w: t.nn.functional.embedding(ids, w),
        **ARRAY,
    ),
    of("cosine_similarity", (2, 5), (2, 5)),
    of("cross_entropy", (4, 3), (4,), values=(normal, below(3)), **ARRAY),
    of(
        "cross_entropy", (2, 3, 5), (2, 5), values=(normal, below(3)),
        call=lambda lib, x, y: lib.cross_entropy(x, y, ignore_index=1, label_smoothing=0.1, reduction="sum"),
        **ARRAY,
    ),
    of("nll_loss", (4, 3), (4,), values=(normal, below(3)), **ARRAY),
    *loss("mse_loss"),
    *loss("l1_loss", unlike=["integers"]),
    *loss("smooth_l1_loss"),
    *loss("binary_cross_entropy_with_logits", values=(normal, lambda rng, shape: rng.uniform(0, 1, shape))),
    *loss("kl_div", values=(negative, positive)),
    of("scaled_dot_product_attention", *HEADS, **ARRAY),
    of(
        "scaled_dot_product_attention", *HEADS,
        call=lambda lib, q, k, v: lib.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        **ARRAY,
    ),
    of(
        "attention_with_weights", *HEADS,
        torch=lambda t, q, k, v: (weights_of(t, q, k) @ v, weights_of(t, q, k)),
        unlike=["text", "shapes"],
    ),
]  # fmt: skip

test_gradients, _, test_against_pytorch, test_device = make_tests(CASES)

OTHERS = {"attention_room"}  # a setting
# Of minigrad, and tested there.
OPERATIONS = {
    "elu", "gelu", "leaky_relu", "log_softmax", "one_hot", "relu", "silu", "softmax", "softplus",
}  # fmt: skip


@pytest.mark.parametrize("name", F.__all__)
def test_every_function_is_tested(name):
    tables = ({case.name for case in CASES}, OTHERS, OPERATIONS)
    assert sum(name in table for table in tables) == 1, f"add a Case for {name} here"
