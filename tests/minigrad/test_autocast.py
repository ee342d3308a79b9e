"""autocast: which dtype each operation gives within it, beside PyTorch's; gradients; blocks, decorators, threads."""

import threading

import numpy as np
import pytest

import minigrad as mg
import nn
import nn.functional as F
from minigrad import ops, watchers
from minigrad.inspect.trace import tracing
from nn.rooms import attention_room
from tests.support import assert_close, leaf, torch_or_skip

NARROW = {"float16": 4e-3, "bfloat16": 32e-3}  # of what products give: a few roundings of 5e-4 and of 4e-3

# ---- dtypes ----------------------------------------------------------------------------------------------------------

ONE_ARGUMENT = (
    "exp log log2 log1p expm1 sqrt rsqrt reciprocal square sin cos sinh cosh tanh sigmoid erf erfc abs relu sum prod "
    "norm amax floor tril isnan"
)

# By name: a call of functions that PyTorch has under the same names, on x (4, 4); `m` is minigrad or torch, `f` their
# nn.functional.
CALLS = {name: lambda m, f, x, name=name: getattr(m, name)(x) for name in ONE_ARGUMENT.split()} | {
    "pow": lambda m, f, x: x**2,
    "number to the pow": lambda m, f, x: 2.0**x,
    "multiply": lambda m, f, x: x * x,
    "divide": lambda m, f, x: x / x,
    "atan2": lambda m, f, x: m.atan2(x, x),
    "logsumexp": lambda m, f, x: m.logsumexp(x, 0),
    "softmax": lambda m, f, x: m.softmax(x, 0),
    "softmax asked for in float16": lambda m, f, x: m.softmax(x, 0, dtype=m.float16),
    "F.softmax asked for in float16": lambda m, f, x: f.softmax(x, 0, dtype=m.float16),
    "log_softmax": lambda m, f, x: m.log_softmax(x, 0),
    "log_softmax asked for in float16": lambda m, f, x: f.log_softmax(x, 0, dtype=m.float16),
    "sum asked for in float16": lambda m, f, x: m.sum(x, 0, dtype=m.float16),
    "sum asked for in float64": lambda m, f, x: m.sum(x, 0, dtype=m.float64),
    "mean asked for in float16": lambda m, f, x: m.mean(x, 0, dtype=m.float16),
    "cumsum": lambda m, f, x: m.cumsum(x, 0),
    "cumprod": lambda m, f, x: m.cumprod(x, 0),
    "softplus": lambda m, f, x: f.softplus(x),
    "elu": lambda m, f, x: f.elu(x),
    "silu": lambda m, f, x: f.silu(x),
    "gelu": lambda m, f, x: f.gelu(x),
    "leaky_relu": lambda m, f, x: f.leaky_relu(x),
    "dropout": lambda m, f, x: f.dropout(x, 0.5, True),
    "matmul": lambda m, f, x: x @ x,
    "einsum": lambda m, f, x: m.einsum("ij,jk->ik", x, x),
    "einsum of products alone": lambda m, f, x: m.einsum("ij,ij->ij", x, x),
    "layer_norm": lambda m, f, x: f.layer_norm(x, (4,)),
    "rms_norm": lambda m, f, x: f.rms_norm(x, (4,)),
    "cosine_similarity": lambda m, f, x: f.cosine_similarity(x, x),
    "mse_loss": lambda m, f, x: f.mse_loss(x, x),
    "l1_loss": lambda m, f, x: f.l1_loss(x, x),
    "smooth_l1_loss": lambda m, f, x: f.smooth_l1_loss(x, x),
    "kl_div": lambda m, f, x: f.kl_div(x, x, reduction="sum"),
    "binary_cross_entropy_with_logits": lambda m, f, x: f.binary_cross_entropy_with_logits(x, x),
    "cross_entropy of probabilities": lambda m, f, x: f.cross_entropy(x, x),
    "where": lambda m, f, x: m.where(x > 0, x, x),
    "lerp": lambda m, f, x: m.lerp(x, x, 0.5),
    "cat": lambda m, f, x: m.cat([x, x]),
    "clamp": lambda m, f, x: m.clamp(x, 0, 1),
}


@pytest.mark.parametrize(
    ("narrow", "dtype"), [(narrow, dtype) for narrow in NARROW for dtype in (narrow, "float32", "float64")]
)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_dtypes_are_those_of_pytorch_on_a_gpu(call, narrow, dtype):
    """PyTorch's fake tensors know the dtypes of a GPU without one."""
    torch = torch_or_skip()
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        theirs = torch.empty(4, 4, device="cuda", dtype=getattr(torch, dtype))
        torch.set_autocast_enabled("cuda", True)  # torch.autocast looks for a GPU first
        torch.set_autocast_dtype("cuda", getattr(torch, narrow))
        try:
            expected = call(torch, torch.nn.functional, theirs).dtype
        finally:
            torch.set_autocast_enabled("cuda", False)
    with mg.autocast(narrow):
        found = call(mg, F, mg.Tensor(np.full((4, 4), 0.5, dtype))).dtype
    assert f"torch.{found}" == str(expected)


PRODUCTS = {
    "matmul": lambda m, f, x: x @ x,
    "matrix @ vector": lambda m, f, x: x @ x[0],
    "vector @ vector": lambda m, f, x: x[0] @ x[0],
    "bmm": lambda m, f, x: m.bmm(x[None], x[None]),
    "linear": lambda m, f, x: f.linear(x, x, x[0]),
    "einsum": lambda m, f, x: m.einsum("ij,jk->ik", x, x),
    "attention": lambda m, f, x: f.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("call", PRODUCTS.values(), ids=PRODUCTS)
def test_products_are_those_of_pytorch_on_a_cpu(call, dtype, narrow):
    torch = torch_or_skip()
    values = np.random.default_rng(0).standard_normal((4, 4)).astype(dtype)
    with torch.autocast("cpu", dtype=getattr(torch, narrow)):
        theirs = call(torch, torch.nn.functional, torch.tensor(values))
    with mg.autocast(narrow):
        ours = call(mg, F, mg.Tensor(values))
    assert f"torch.{ours.dtype}" == str(theirs.dtype)
    assert_close(ours, theirs, NARROW[narrow] / 2 if dtype != "float64" else 1e-12)


@pytest.mark.parametrize(
    "call",
    [mg.mean, mg.var, mg.std, mg.exp2, mg.trace, lambda x: mg.einsum("ij->i", x)],
    ids=["mean", "var", "std", "exp2", "trace", "einsum of a sum alone"],
)
def test_all_sums_and_powers_are_in_float32(call):
    x = mg.Tensor(np.full((4, 4), 300.0 if call is not mg.exp2 else 20.0, np.float16))
    x = x * mg.Tensor([1.0, -1.0, 1.0, -1.0], dtype=np.float16)
    with mg.autocast():
        y = call(x)
    assert y.dtype == np.float32
    assert_close(y, call(x.double()), 1e-6)


def test_what_is_computed_in_float32_does_not_overflow():
    x = mg.Tensor(np.full(1000, 300.0, np.float16))
    with mg.autocast():
        assert x.square().mean().item() == pytest.approx(90000) and (x**2).sum().item() == 9e7
        assert mg.Tensor(np.full(1, 20.0, np.float16)).exp().item() == pytest.approx(np.exp(20))


def test_integers_numbers_and_booleans_are_no_business_of_it():
    ids = mg.arange(4)
    with mg.autocast():
        assert ids.sum().dtype == np.int64 and (ids @ ids).dtype == np.int64 and (ids**2).dtype == np.int64
        assert ids.exp().dtype == np.float32
        assert F.cross_entropy(mg.zeros(2, 3).half(), mg.Tensor([0, 2])).dtype == np.float32


def test_arrays_alone_are_no_business_of_it():
    """Pullbacks work on them: what they compute is settled."""
    x = np.ones((2, 2), np.float32)
    with mg.autocast():
        assert ops.matmul(x, x).dtype == np.float32 and ops.sum(x.astype(np.float16)).dtype == np.float16
        assert F.layer_norm(x.astype(np.float16), 2).dtype == np.float16


@pytest.mark.cpu_only(reason="NumPy's arrays stand beside tensors, and devices do not mix")
def test_an_array_beside_a_tensor_is_cast_with_it():
    with mg.autocast():
        assert (mg.ones(2, 2) @ np.ones((2, 2), np.float32)).dtype == np.float16


@pytest.mark.parametrize("room", ["plain", "fused"])
def test_attention_casts_its_tensors_once_but_no_mask(room):
    """A float mask in float16 would have infinities in place of its large numbers."""
    arrays = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 4)).astype(np.float32)
    q, k, v = [mg.Tensor(x) for x in arrays]
    mask = mg.Tensor(np.where(np.tri(5), 0.0, -1e9).astype(np.float32), requires_grad=True)
    with attention_room(room):
        expected = F.scaled_dot_product_attention(q.half(), k.half(), v.half(), mask)
        weighted, _ = F.attention_with_weights(q.half(), k.half(), v.half(), mask)
    with attention_room(room), mg.autocast():
        for masked, same in (
            (F.scaled_dot_product_attention(q, k, v, mask), expected),
            (F.scaled_dot_product_attention(q, value=v, key=k, attn_mask=mask), expected),
            (F.attention_with_weights(q, k, v, mask)[0], weighted),
        ):
            assert masked.dtype == np.float16
            np.testing.assert_array_equal(masked.numpy(), same.numpy())
        lowest = F.scaled_dot_product_attention(q, k, v, mg.full((5, 5), -1e9))  # hides nothing
        assert_close(lowest, np.broadcast_to(v.numpy().mean(-2, keepdims=True), v.shape), NARROW["float16"])


# ---- gradients -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiHeadAttention(8, 2)
        self.linear1, self.linear2 = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, is_causal=True)
        return self.linear2(F.gelu(self.linear1(x)))


@pytest.mark.parametrize("narrow", NARROW)
def test_gradients_of_a_model_are_float64s_within_the_precision_of_16_bits(narrow):
    mg.manual_seed(0)
    model, exact = Block(), Block().to(np.float64)
    exact.load_state_dict(model.state_dict())
    x, target = np.random.default_rng(0).standard_normal((3, 6, 8)), np.arange(18) % 5
    with mg.autocast(narrow):
        logits = model(mg.Tensor(x.astype(np.float32)))
        loss = F.cross_entropy(logits.reshape(-1, 5), mg.Tensor(target))
    assert logits.dtype == narrow and loss.dtype == np.float32
    loss.backward()
    true_loss = F.cross_entropy(exact(mg.Tensor(x)).reshape(-1, 5), mg.Tensor(target))
    true_loss.backward()
    assert_close(loss, true_loss, NARROW[narrow])
    for (name, ours), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert ours.dtype == ours.grad.dtype == np.float32
        assert_close(ours.grad, theirs.grad, NARROW[narrow], name, least=0.01)
        assert not (ours.grad.numpy() == theirs.grad.numpy()).all()  # or nothing was cast


def test_a_leaf_used_twice_gathers_its_gradient_in_float32():
    w = leaf(np.ones((2, 2)), np.float32)
    x = mg.Tensor([[1024.0, 0.0]])
    with mg.autocast():
        y = (x @ w).sum() + (mg.Tensor([[0.25, 0.0]]) @ w).sum()
    y.backward()
    assert w.grad.dtype == np.float32 and w.grad.numpy()[0, 0] == 1024.25


@pytest.mark.parametrize("narrow", NARROW)
def test_the_gradient_of_a_bias_in_16_bits_is_added_up_in_float32(narrow):
    bias = leaf(np.zeros(3), np.float32)
    with mg.autocast(narrow):
        F.linear(mg.zeros(5000, 2), mg.zeros(3, 2), bias).sum().backward()
    np.testing.assert_array_equal(bias.grad.numpy(), [5000, 5000, 5000] if narrow == "float16" else [4992, 4992, 4992])


def test_gradients_of_gradients():
    x = leaf([[0.5, -1.0], [2.0, 0.25]], np.float32)
    with mg.autocast():
        y = (x @ x).exp().sum()
    (g,) = mg.grad(y, [x], create_graph=True)
    (h,) = mg.grad((g * g).sum(), [x])
    z = leaf(x.numpy())
    (true_g,) = mg.grad((z @ z).exp().sum(), [z], create_graph=True)
    (true_h,) = mg.grad((true_g * true_g).sum(), [z])
    assert g.dtype == h.dtype == np.float32
    assert_close(g, true_g, 1e-2)
    assert_close(h, true_h, 1e-2)


def test_checkpoint_runs_again_as_it_ran_at_first():
    mg.manual_seed(0)
    model, x = Block(), mg.randn(2, 4, 8)
    gradients = []
    for call in (lambda: model(x), lambda: mg.checkpoint(model, x)):
        with mg.autocast():
            y = call().sum()
        gradients.append([g.numpy() for g in mg.grad(y, list(model.parameters()))])
    for direct, checkpointed in zip(*gradients, strict=True):
        np.testing.assert_array_equal(direct, checkpointed)
    y = mg.checkpoint(model, x)
    with mg.autocast():  # not for what was computed outside
        np.testing.assert_array_equal(mg.grad(y.sum(), [model.linear2.bias])[0].numpy(), np.full(5, 8.0))


# ---- blocks ----------------------------------------------------------------------------------------------------------

X = mg.ones(2, 2)


def is_on():
    return (X @ X).dtype == np.float16


def test_blocks_nest_and_are_left_as_they_were_found():
    assert not is_on()
    with mg.autocast():
        assert is_on()
        with mg.autocast(enabled=False):
            assert not is_on()
            with mg.autocast("float16"):
                assert is_on()
            assert not is_on()
        assert is_on()
    assert not is_on()
    with pytest.raises(KeyError), mg.autocast():
        raise KeyError
    assert not is_on()


def test_one_block_entered_within_itself():
    block = mg.autocast()
    with block, mg.autocast(enabled=False):
        with block:
            assert is_on()
        assert not is_on()
    assert not is_on()


def test_a_decorated_function_that_calls_itself():
    @mg.autocast(dtype=np.float16)
    def depth(n):
        """What it does."""
        return is_on() if n == 0 else depth(n - 1) and is_on()

    assert depth(2) and not is_on() and depth.__doc__ == "What it does."

    @mg.autocast(enabled=False)
    def off():
        return is_on()

    with mg.autocast():
        assert not off() and is_on()


def test_behind_the_last_block_operations_look_for_nothing():
    before = watchers.active
    with mg.autocast(), mg.autocast(), mg.autocast(enabled=False):
        assert watchers.active == before
    assert watchers.active == before


def test_each_thread_has_its_own():
    seen = []
    with mg.autocast():
        thread = threading.Thread(target=lambda: seen.append(is_on()))
        thread.start()
        thread.join()
        assert is_on()
    assert seen == [False]


def test_an_operation_without_a_class_follows_promotion():
    @mg.op
    def twice(x):
        return x + x, lambda g: g + g

    with mg.autocast():
        assert twice(X).dtype == np.float32 and twice(X @ X).dtype == np.float16
        assert (X @ X + X).dtype == np.float32


def test_watchers_see_the_casts():
    with tracing(), mg.autocast():
        y = leaf(np.ones((2, 2)), np.float32) @ X
    assert [node.operation.name for node in (y.node, y.node.inputs[0])] == ["matmul", "astype"]


@pytest.mark.parametrize("dtype", ["float32", np.float64, None, lambda: None, "nonsense"])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(TypeError, match=r"autocast: dtype must be 'float16' or 'bfloat16', not "):
        mg.autocast(dtype)


def test_what_cannot_be_decorated():
    def generator():
        yield 1

    async def coroutine():
        pass

    with pytest.raises(TypeError, match="autocast cannot decorate the generator generator: use a block inside it"):
        mg.autocast()(generator)
    for wrong in (coroutine, Block, 3):
        with pytest.raises(TypeError, match=r"autocast decorates a function, not .*: use a block"):
            mg.autocast()(wrong)
