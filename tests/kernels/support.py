"""What tests of the attention kernels share: inputs, calls, how far results are off, faulty builds.

What is expected of a call is in `tests.kernels.reference`; compilers for GPUs are in `tests.kernels.compilers`.
"""

import math
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kernels import attention_backward, attention_forward, launch, modules
from kernels.emulator import sanitizer_environment
from tests.kernels.reference import Attention, plain_attention

FULL = os.environ.get("MINIGRAD_FULL") == "1"
NAMES = ("output", "d_query", "d_key", "d_value", "d_bias")
# (B, H, N_q), N_k and options
SHAPES = {
    "odd lengths": ((2, 2, 101), 77, {}),
    "causal": ((1, 2, 131), 131, {"is_causal": True}),
    "first rows hidden": ((1, 1, 133), 33, {"is_causal": True, "causal_offset": -100}),
    "first tiles hidden": ((1, 1, 300), 40, {"is_causal": True, "causal_offset": -260}),
    "more keys": ((1, 1, 35), 150, {"is_causal": True, "causal_offset": 115}),
    "an offset past all keys": ((1, 1, 70), 70, {"is_causal": True, "causal_offset": 10**15}),
    "one query": ((2, 1, 1), 70, {}),
}


# ---- options ---------------------------------------------------------------------------------------------------------

B, H, N_Q, N_K = 2, 2, 67, 83  # of the inputs that these fit
DROPOUT = {"dropout_p": 0.3, "dropout_key": (5, 6, 7)}


def random_bias(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def random_mask(*shape):
    return np.random.default_rng(2).random(shape) < 0.7


OPTIONS = {
    "key lengths": lambda: {"key_lengths": np.array([0, 41])},
    "key lengths of a list, causal": lambda: {"key_lengths": [83, 500], "is_causal": True},
    "scale": lambda: {"scale": 0.0},
    "a negative scale": lambda: {"scale": -0.5},
    "a mask for each head": lambda: {"bias": random_mask(B, H, N_Q, N_K)},
    "a mask of keys, causal": lambda: {"bias": random_mask(B, 1, 1, N_K), "is_causal": True},
    "a mask of queries": lambda: {"bias": random_mask(N_Q, 1)},
    "a bias for each head": lambda: {"bias": random_bias(B, H, N_Q, N_K)},
    "a bias for all batch entries": lambda: {"bias": random_bias(H, N_Q, N_K)},
    "a bias for all heads": lambda: {"bias": random_bias(B, 1, N_Q, N_K)},
    "a bias of pairs": lambda: {"bias": random_bias(N_Q, N_K), "is_causal": True, "causal_offset": 5},
    "a bias of keys": lambda: {"bias": random_bias(N_K)},
    "a bias of keys for each head": lambda: {"bias": random_bias(1, H, 1, N_K), "key_lengths": [60, 70]},
    "a bias of queries": lambda: {"bias": random_bias(N_Q, 1)},
    "a bias of one number": lambda: {"bias": random_bias(1)},
    "a bias that hides": lambda: {"bias": np.where(random_mask(N_Q, N_K), 0, -np.inf).astype(np.float32)},
    "a bias that hides all of a row": lambda: {"bias": np.where(random_mask(N_Q, 1), 0, -np.inf).astype(np.float32)},
    "a bias of the lowest number": lambda: {"bias": np.full((N_Q, N_K), np.finfo(np.float32).min)},
    "dropout": lambda: {**DROPOUT, "is_causal": True},
    "dropout of all": lambda: {**DROPOUT, "dropout_p": 1.0},
    "everything": lambda: {
        "bias": random_bias(1, H, N_Q, N_K),
        "key_lengths": np.array([70, 83]),
        "is_causal": True,
        "causal_offset": -3,
        "scale": 0.3,
        **DROPOUT,
    },
}


def options_of(name, width):
    """The options of this name for heads of this many features, with a scale that gives scores as large at any width.

    float32 itself knows a score s only up to s 2⁻²⁴, and so its exponential.
    """
    options = OPTIONS[name]()
    return {**options, "scale": options["scale"] * 4 / math.sqrt(width)} if "scale" in options else options


def every(cases):
    """The cases that only the full matrix has."""
    return list(cases) if FULL else []


# ---- calls -----------------------------------------------------------------------------------------------------------


def random_inputs(dtype, shape, key_heads=None, keys=None):
    """(grad_output, query, key, value) of a query's shape (B, H, N_q, d)."""
    batches, heads, queries, width = shape
    key_shape = (batches, key_heads or heads, queries if keys is None else keys, width)
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in (shape, shape, key_shape, key_shape)]


def run(inputs, **options):
    """(output, d_query, d_key, d_value, d_bias)"""
    grad_output, *qkv = inputs
    output, lse = attention_forward(*qkv, **options)
    return output, *attention_backward(grad_output, *qkv, output, lse, **options)


def errors(inputs, results, options):
    """‖found − exact‖ / ‖exact‖ of the output and each gradient that was found; infinite if not all of it is finite."""
    reference = Attention(*inputs[1:], **options)
    errors = {}
    for name, found, exact in zip(NAMES, results, (reference.output, *reference.gradients(inputs[0])), strict=True):
        if found is not None:
            found = np.asarray(found, np.float64)
            assert found.shape == exact.shape
            distance = np.linalg.norm(found - exact) if np.isfinite(found).all() else np.inf
            errors[name] = distance / (np.linalg.norm(exact) if np.linalg.norm(exact) > 1e-12 else 1)
    return errors


def excess(inputs, results, options):
    """Of the output and each gradient: its error, in units of what is allowed it.

    Allowed is 1e-6, and to 16 bits a small multiple of what plain attention in the same dtype errs by.
    """
    found = errors(inputs, results, options)
    if inputs[0].dtype == np.float32:
        return {name: error / 1e-6 for name, error in found.items()}
    plain = errors(inputs, plain_attention(*inputs, **options), options)
    allowed = {name: (2 if name == "output" else 3) * plain[name] for name in found}
    return {name: found[name] / max(allowed[name], 1e-6) for name in found}


def is_as_exact_as_plain(inputs, options, results):
    return max(excess(inputs, results, options).values()) <= 1


def assert_close(inputs, results, options):
    found = excess(inputs, results, options)
    assert max(found.values()) <= 1, f"errors, where 1 is allowed: {found}"


def assert_same_bits(results, expected, how=""):
    for name, found, other in zip(NAMES, results, expected, strict=True):
        np.testing.assert_array_equal(found, other, err_msg=f"{name} {how}")


# ---- other builds ----------------------------------------------------------------------------------------------------


def forget_modules():
    modules.module.cache_clear()
    modules.kernel.cache_clear()


@contextmanager
def built_by(build):
    """In it launches compile their sources with build(code, options)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules, "EmulatedModule", build)
        forget_modules()
        yield
    forget_modules()


def assert_nothing_reported(sanitize, function, *arguments):
    """Calls a function of a test module, "module:name", in a process that was started for this sanitizer."""
    module, name = function.split(":")
    command = [sys.executable, "-c", f"from {module} import {name}; {name}(*{arguments!r})"]
    if sanitize == "thread" and shutil.which("setarch"):
        command = ["setarch", "-R", *command]  # addresses that ThreadSanitizer can map
    root = Path(launch.__file__).parents[1]
    result = subprocess.run(command, cwd=root, env=sanitizer_environment(sanitize), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
