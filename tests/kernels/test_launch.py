"""The launcher: what it refuses and how it says so, what it hands to CuPy, and which memory it takes."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from kernels import attention_backward, attention_forward, call, devices, launch
from kernels.tiles import ON_TENSOR_CORES, choose_tiles
from minigrad.backend import DeviceError
from tests.kernels.emulator.compiled import needs_compiler
from tests.kernels.support import forget_modules


def arrays(*, queries=4, keys=6, heads=2, key_heads=2, width=8):
    """(query, key, value) of zeros"""
    query = np.zeros((3, heads, queries, width), np.float32)
    key = np.zeros((3, key_heads, keys, width), np.float32)
    return query, key, key


# ---- what does not fit -----------------------------------------------------------------------------------------------

QUERY, KEY, _ = arrays()
WRONG_INPUTS = [
    (TypeError, "query must be an array of NumPy or CuPy, got list", ([1.0], KEY, KEY)),
    (TypeError, "key must be an array of NumPy or CuPy, got MaskedArray", (QUERY, np.ma.array(KEY), KEY)),
    (TypeError, "one dtype, got float32, float64 and float32", (QUERY, KEY.astype(np.float64), KEY)),
    (TypeError, "compute in float32, float16, bfloat16, got float64", [x.astype("f8") for x in (QUERY, KEY, KEY)]),
    (TypeError, "compute in float32, float16, bfloat16, got int64", [x.astype("i8") for x in (QUERY, KEY, KEY)]),
    (ValueError, r"query \(3, 2, 4, 8\), key \(3, 2, 6, 7\) and .* do not fit", (QUERY, KEY[..., 1:], KEY[..., 1:])),
    (ValueError, r"\(B, H, N_q, d\), \(B, H_kv, N_k, d\) and the same", (QUERY, KEY, KEY[:, :, 1:])),
    (ValueError, "do not fit", (QUERY[0], KEY[0], KEY[0])),
    (ValueError, "do not fit", (QUERY[:2], KEY, KEY)),
    (ValueError, "heads must be a multiple of the key's", arrays(heads=3)),
    (ValueError, "heads must be a multiple of the key's", arrays(key_heads=0)),
    (ValueError, "the head dimension must be 1 to 256, got 257", arrays(width=257)),
    (ValueError, "the head dimension must be 1 to 256, got 0", arrays(width=0)),
]


@pytest.mark.parametrize("error, text, inputs", WRONG_INPUTS)
def test_inputs_that_do_not_fit(error, text, inputs):
    with pytest.raises(error, match=text):
        attention_forward(*inputs)


WRONG_OPTIONS = [
    (TypeError, "bias must be a boolean .* or floating array, got int64", {"bias": np.zeros((4, 6), np.int64)}),
    (TypeError, "bias must be a boolean .* or floating array, got list", {"bias": [True]}),
    (ValueError, r"bias \(4, 5\) does not broadcast to .* = \(3, 2, 4, 6\)", {"bias": np.zeros((4, 5))}),
    (ValueError, "does not broadcast", {"bias": np.zeros((1, 1, 1, 1, 1), bool)}),
    (TypeError, "key_lengths must be integers, got float64", {"key_lengths": [1.0, 2.0, 3.0]}),
    (ValueError, r"key_lengths must be of shape \(B,\) = \(3,\), got \(2,\)", {"key_lengths": [1, 2]}),
    (TypeError, "causal_offset must be an integer, got 0.5", {"is_causal": True, "causal_offset": 0.5}),
    (ValueError, "scale must be a number that float32 holds, got 'a'", {"scale": "a"}),
    (ValueError, "scale must be a number that float32 holds, got nan", {"scale": float("nan")}),
    (ValueError, r"scale must be a number that float32 holds, got 1e\+300", {"scale": 1e300}),
    (ValueError, "dropout_p must be from 0 to 1, got 1.5", {"dropout_p": 1.5}),
    (ValueError, "dropout_p must be from 0 to 1, got nan", {"dropout_p": float("nan")}),
    (ValueError, r"dropout_p=0.1 needs dropout_key=\(seed, step, call\), .* got None", {"dropout_p": 0.1}),
    (ValueError, "dropout_p must be from 0 to 1, got 'a'", {"dropout_p": "a"}),
    (ValueError, "dropout_p must be from 0 to 1, got None", {"dropout_p": None}),
    (ValueError, "three integers from 0 to .* got 5", {"dropout_p": 0.1, "dropout_key": 5}),
    (ValueError, "three integers from 0 to .* got {1, 2, 3}", {"dropout_p": 0.1, "dropout_key": {1, 2, 3}}),
    (ValueError, r"three integers from 0 to .* got \(1.0, 2, 3\)", {"dropout_p": 0.1, "dropout_key": (1.0, 2, 3)}),
    (ValueError, "three integers from 0 to", {"dropout_p": 0.1, "dropout_key": (1, 2)}),
    (ValueError, "three integers from 0 to", {"dropout_p": 0.1, "dropout_key": (1, 2, -1)}),
]


@pytest.mark.parametrize("error, text, options", WRONG_OPTIONS)
def test_options_that_do_not_fit(error, text, options):
    with pytest.raises(error, match=text):
        attention_forward(*arrays(), **options)


@pytest.mark.parametrize(
    "text, replaced",
    [
        (r"grad_output must be an array of float32 \(3, 2, 4, 8\), got float32 \(1, 2", {"grad_output": QUERY[:1]}),
        (r"output must be an array of float32 \(3, 2, 4, 8\), got NoneType", {"output": None}),
        (r"grad_output must be an array of float32 .*, got float64", {"grad_output": QUERY.astype(np.float64)}),
        (r"lse must be an array of float32 \(3, 2, 4\), got float64", {"lse": np.zeros((3, 2, 4))}),
        (r"lse must be an array of float32 \(3, 2, 4\), got float32 \(3, 2, 5\)", {"lse": np.zeros((3, 2, 5), "f")}),
        (r"lse must be an array of float32 \(3, 2, 4\), got NoneType", {"lse": None}),
    ],
)
def test_what_backward_is_given_must_be_of_its_forward(text, replaced):
    query, key, value = arrays()
    given = {"grad_output": query, "output": query, "lse": np.zeros((3, 2, 4), np.float32)} | replaced
    with pytest.raises(ValueError, match=f"attention: {text}"):
        attention_backward(given["grad_output"], query, key, value, given["output"], given["lse"])


def test_arrays_on_two_devices(monkeypatch):
    query, key, value = arrays()
    monkeypatch.setattr(call, "device_of", lambda x: "cuda:0" if x is key else "cpu")
    with pytest.raises(DeviceError, match="the query is on cpu and the key on cuda:0"):
        attention_forward(query, key, value)


def test_no_tiles_for_a_device_with_too_little_shared_memory():
    with pytest.raises(ValueError, match=r"head dimension 200 in float32 needs 68096 bytes .* this device has 65536"):
        choose_tiles("float32", 200, backward=True, plain=True, shared_limit=64 << 10)


@pytest.mark.parametrize(
    ("capability", "shared", "kind", "width", "expected"),
    [
        ("90", 227, "float32", 256, True),
        ("90", 227, "float16", 256, True),
        ("90", 227, "float32", 257, False),
        ("90", 227, "float64", 16, False),
        ("75", 64, "float16", 16, False),  # instructions of sm_80
        ("75", 64, "float32", 16, True),
        ("75", 64, ON_TENSOR_CORES, 16, False),
        ("90", 227, ON_TENSOR_CORES, 16, True),
        ("75", 64, "float32", 256, False),  # no tiles fit
    ],
)
def test_which_devices_have_kernels(monkeypatch, capability, shared, kind, width, expected):
    device = SimpleNamespace(compute_capability=capability, attributes={"MaxSharedMemoryPerBlockOptin": shared << 10})
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda index: device))
    monkeypatch.setattr(devices, "cuda_device", lambda name: (cupy, 0))
    assert launch.has_kernels.__wrapped__(kind, width, "cuda:0") == expected  # not from its cache


@pytest.mark.parametrize("kind, options", [("float16", {}), ("float32", {"tensor_cores": True})])
def test_a_gpu_that_is_too_old(monkeypatch, kind, options):
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda index: SimpleNamespace(compute_capability="75")))
    monkeypatch.setattr(devices, "cuda_device", lambda name: (cupy, 0))
    monkeypatch.setattr(call, "device_of", lambda array: "cuda:0")
    needed = ON_TENSOR_CORES if options else kind
    with pytest.raises(TypeError, match=f"attention: {needed} needs compute capability 8.0, cuda:0 has 7.5"):
        attention_forward(*[x.astype(kind) for x in arrays()], **options)


def test_more_blocks_than_a_launch_takes():
    made = call.Call(*arrays(), call.Options())
    with pytest.raises(ValueError, match=r"2147483648 blocks of work, a GPU takes fewer than 2\*\*31"):
        launch._Kernels(made, backward=False).launch("attention_forward", 2**31)


# ---- what CuPy is told -----------------------------------------------------------------------------------------------


class Recorder:
    """A library like CuPy, whose RawModule writes down how it is called."""

    def __init__(self):
        self.modules, self.launches = [], []

    def __getattr__(self, name):
        return getattr(np, name)

    def RawModule(self, *, code, options):
        self.modules.append((code, options))
        return self

    def get_function(self, name):
        return Kernel(name, self.launches)


class Kernel:
    max_dynamic_shared_size_bytes = None

    def __init__(self, name, launches):
        self.name, self.launches = name, launches

    def __call__(self, grid, block, args, *, shared_mem):
        assert shared_mem == self.max_dynamic_shared_size_bytes
        assert (shared_mem == 0) == (self.name == "attention_delta")  # it has no tiles
        self.launches.append((self.name, grid, block, args))


@pytest.fixture
def cupy(monkeypatch):
    recorder = Recorder()
    limit = {"MaxSharedMemoryPerBlockOptin": 227 << 10}
    recorder.cuda = SimpleNamespace(Device=lambda index: SimpleNamespace(attributes=limit))
    monkeypatch.setattr(call, "array_module", lambda *arrays: recorder)
    monkeypatch.setattr(call, "device_of", lambda array: "cuda:0")
    monkeypatch.setattr(devices, "cuda_device", lambda device: (recorder, 0))
    forget_modules()
    yield recorder
    forget_modules()


def test_launches_on_a_gpu(cupy):
    query, key, value = arrays(queries=100, keys=130, heads=4)
    output, lse = attention_forward(query, key, value, is_causal=True)
    attention_backward(query, query, key, value, output, lse, is_causal=True)
    attention_forward(query, key, value)
    assert [launched[:3] for launched in cupy.launches] == [
        ("attention_forward", (3 * 4 * 2,), (256,)),
        ("attention_delta", (3 * 4 * 100 // 8,), (256,)),
        ("attention_dq", (3 * 4 * 2,), (256,)),
        ("attention_dkdv", (3 * 2 * 3,), (256,)),  # one block of a key head sums over its group
        ("attention_forward", (3 * 4 * 2,), (256,)),
    ]
    assert len(cupy.modules) == 2  # forward and backward, each built once
    for code, options in cupy.modules:
        assert "#include" not in code  # CuPy's cache would not notice a change in another file
        assert "-DHEAD_DIM=16" in options and "-DALIGNED=1" in options
    for _, _, _, arguments in cupy.launches:  # CuPy does not check types: a Python number would be 8 bytes
        assert all(x is None or isinstance(x, np.ndarray) for x in arguments)
        assert arguments[-1].dtype == call.ATTENTION and arguments[-1].shape == (1,)


def test_the_struct(cupy):
    whole = np.zeros((3, 10, 2, 4, 8), np.float32)  # (B, N, 2, H, d)
    query, key = (whole[:, :, i].swapaxes(1, 2) for i in range(2))
    bias = np.zeros((4, 1, 10), np.float32)
    attention_forward(query, key, key, bias=bias, is_causal=True, causal_offset=-(10**12), dropout_p=0.5,
                      dropout_key=(1, 2, 3))  # fmt: skip
    a = cupy.launches[0][3][-1][0]
    assert a["q"].item() == a["k"].item() == (640, 8, 64)
    assert a["bias"].item() == (0, 10, 0, 1)
    assert [a[name] for name in call.SIZES] == [3, 4, 4, 10, 10, 8]
    assert a["causal_offset"] == -10 and a["drop_below"] == 2**31 and a["keep_scale"] == 2
    np.testing.assert_allclose(a["scale"], 8**-0.5, rtol=1e-7)


# ---- memory ----------------------------------------------------------------------------------------------------------


@needs_compiler
def test_memory_grows_with_n_not_with_its_square():
    n, width = 2048, 16
    query = np.random.default_rng(0).standard_normal((1, 1, n, width), dtype=np.float32)
    attention_backward(query, query, query, query, *attention_forward(query, query, query))  # compiled
    tracemalloc.start()
    output, lse = attention_forward(query, query, query)
    attention_backward(query, query, query, query, output, lse)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows, row = query.nbytes, lse.nbytes
    assert peak <= 4 * rows + 3 * row + 50_000  # output, three gradients; lse, delta, share; Python's own objects
    assert 10 * peak < n * n * 4
