"""Every function of minigrad that is no method of Tensor, held against PyTorch: joining, choosing, padding, making."""

import inspect

import pytest
from hypothesis import strategies as st

import minigrad as mg
from minigrad import Tensor, ops
from tests.minigrad.ops.factory import ANY_THREE, THREE, Case, booleans, make_tests, normal, with_axes

NOTHING = st.just(())  # no operands


def of(name, call, *shapes, torch=None, **more):
    """A case of operands of the given shapes; `call` takes minigrad or PyTorch, which have the name in common."""
    return Case(
        name, lambda _, *x: call(mg, *x), st.just(shapes), torch=torch or call, numpy=lambda n, *x: call(mg, *x), **more
    )


def making(name, *calls, refuses=()):
    """Cases of a function that makes a tensor of no tensor."""
    return [Case(name, lambda _, c=c: c(mg), NOTHING, torch=c, differentiable=False, refuses=refuses) for c in calls]


def like(name, call, **more):
    """A case of a function that makes a tensor of another's form."""
    return Case(name, lambda _, x: call(mg, x), with_axes(0), torch=call, differentiable=False, **more)


HALF, DOUBLE = "float16", "float64"

CASES = [
    of("cat", lambda lib, x, y: lib.cat([x, y]), (1, 2), (3, 2)),
    of("cat", lambda lib, x, y, z: lib.cat((x, y, z), dim=-1), (2, 1), (2, 0), (2, 3), unlike=["shapes"]),
    of("cat", lambda lib, x, y: lib.cat([x, y], 1), (0,), (2, 3), refuses=[lambda lib, x, y: lib.cat([])]),
    of("stack", lambda lib, x, y: lib.stack([x, y], dim=-1), (2, 3), (2, 3), refuses=[lambda lib, x, y: lib.stack([])]),
    Case(
        "where", lambda _, c, x, y: mg.where(c, x, y), THREE, ANY_THREE, values=(booleans, normal, normal),
        torch=lambda t, c, x, y: t.where(c, x, y),
    ),
    of(
        "pad", lambda lib, x: mg.pad(x, (1, 2, -1, 0), value=0.5), (3, 4),
        torch=lambda t, x: t.nn.functional.pad(x, (1, 2, -1, 0), value=0.5),
    ),
    of("einsum", lambda lib, x, y: lib.einsum("bij,bjk->bik", x, y), (2, 3, 4), (2, 4, 5)),
    of(
        "einsum", lambda lib, x: lib.einsum("ii->i", x), (3, 3),
        refuses=[lambda lib, x: lib.einsum("ij,jk->ik", x), lambda lib, x: lib.einsum("i->i", x)],
    ),
    # making
    *[
        case for name in ("zeros", "ones") for case in making(
            name, lambda lib, n=name: getattr(lib, n)(2, 3), lambda lib, n=name: getattr(lib, n)((0, 3)),
            lambda lib, n=name: getattr(lib, n)(2, dtype=getattr(lib, HALF)),
            lambda lib, n=name: getattr(lib, n)([], dtype=getattr(lib, DOUBLE)),
            refuses=[lambda lib, n=name: getattr(lib, n)(-1), lambda lib, n=name: getattr(lib, n)("2")],
        )
    ],
    *making(
        "full", lambda lib: lib.full((2, 3), 2.5), lambda lib: lib.full((2,), 2), lambda lib: lib.full((), True),
        lambda lib: lib.full((2,), 1, dtype=getattr(lib, HALF)), refuses=[lambda lib: lib.full((-1,), 1.0)],
    ),
    *making(
        "arange", lambda lib: lib.arange(4), lambda lib: lib.arange(1, 8, 3), lambda lib: lib.arange(0.5, -1, -0.5),
        lambda lib: lib.arange(3, dtype=getattr(lib, DOUBLE)), refuses=[lambda lib: lib.arange(3, 0)],
    ),
    *making(
        "linspace", lambda lib: lib.linspace(0, 1, 5), lambda lib: lib.linspace(2, -2, 1),
        lambda lib: lib.linspace(0, 1, 3, dtype=getattr(lib, HALF)), refuses=[lambda lib: lib.linspace(0, 1, -1)],
    ),
    *making(
        "eye", lambda lib: lib.eye(3), lambda lib: lib.eye(2, 3), lambda lib: lib.eye(2, dtype=getattr(lib, DOUBLE)),
        refuses=[lambda lib: lib.eye(-1)],
    ),
    # drawn at random: form and dtype are compared, the numbers not
    *[
        case for name in ("rand", "randn") for case in making(
            name, lambda lib, n=name: getattr(lib, n)(2, 3) * 0, lambda lib, n=name: getattr(lib, n)(()) * 0,
            lambda lib, n=name: getattr(lib, n)(2, dtype=getattr(lib, DOUBLE)) * 0,
            refuses=[lambda lib, n=name: getattr(lib, n)(-1)],
        )
    ],
    *making(
        "randint", lambda lib: lib.randint(5, (2, 3)) * 0, lambda lib: lib.randint(3, 5, (2,)) * 0,
        refuses=[lambda lib: lib.randint(5, 2, (2,))],
    ),
    *making("randperm", lambda lib: lib.randperm(5).sort()[0], refuses=[lambda lib: lib.randperm(-1)]),
    *[like(name, lambda lib, x, n=name: getattr(lib, n)(x)) for name in ("zeros_like", "ones_like")],
    *[like(name, lambda lib, x, n=name: getattr(lib, n)(x) * 0) for name in ("rand_like", "randn_like")],
    like("full_like", lambda lib, x: lib.full_like(x, 2.5)),
    like("randint_like", lambda lib, x: lib.randint_like(x, 5) * 0),
]  # fmt: skip

test_gradients, _, test_against_pytorch, _ = make_tests(CASES)

# What is no operation and makes no tensor: the engine, gradients, looking, settings. Tested in files of their own.
OTHERS = {
    "AnomalyError", "DeviceError", "Generator", "Tensor", "autocast", "bfloat16", "bool_", "checkpoint",
    "cuda_available",
    "detect_anomaly", "enable_grad", "float16", "float32", "float64", "from_dlpack", "get_default_device",
    "get_default_dtype", "get_num_threads",
    "grad", "gradcheck", "graph", "hessian", "hvp", "int32", "int64", "is_grad_enabled", "is_tensor", "jacobian", "jvp",
    "manual_seed", "namespace", "no_grad", "op", "profile", "set_default_device", "set_default_dtype",
    "set_num_threads", "tensor",
    "tracing", "vhp", "vjp",
}  # fmt: skip


def functions_of_minigrad():
    """Its public names that are neither methods of Tensor nor operations, which have tables of their own."""
    elsewhere = {id(inspect.getattr_static(Tensor, name)) for name in dir(Tensor)} | {id(f) for f in vars(ops).values()}
    return [
        name
        for name, value in vars(mg).items()
        if not name.startswith("_") and not inspect.ismodule(value) and id(value) not in elsewhere
    ]


@pytest.mark.parametrize("name", functions_of_minigrad())
def test_every_function_is_tested(name):
    assert (name in {case.name for case in CASES}) != (name in OTHERS), f"add a Case for {name}, or name it in OTHERS"
