"""What tests of the attention kernels share: inputs, calls, how far results are off, faulty builds, other compilers.

What is expected of a call is in `tests.kernels.reference`.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kernels import attention_backward, attention_forward, launch, tiles
from kernels.emulator import sanitizer_environment
from tests.kernels.reference import Attention

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


def assert_same_bits(results, expected, how=""):
    for name, found, other in zip(NAMES, results, expected, strict=True):
        np.testing.assert_array_equal(found, other, err_msg=f"{name} {how}")


# ---- other builds ----------------------------------------------------------------------------------------------------


def forget_modules():
    launch._module.cache_clear()
    launch._kernel.cache_clear()


@contextmanager
def built_by(build):
    """In it launches compile their sources with build(code, options)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "EmulatedModule", build)
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


# ---- nvcc ------------------------------------------------------------------------------------------------------------


def tool_of_cuda(name):
    """The path of a tool: in PATH, or in NVIDIA's Python packages."""
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    return shutil.which(name) or next(map(str, sorted(packages.glob(f"*/bin/{name}"))), None)


NVCC = tool_of_cuda("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
ARCHITECTURES = ("sm_80", "sm_90")


def rows_of_tile_table(kind):
    return [
        row
        for table in (tiles._FORWARD, tiles._BACKWARD)
        for key, rows in table.items()
        if key[0] == kind
        for row in rows
    ]


def is_common(row):
    return row.options[0] in ("-DHEAD_DIM=64", "-DHEAD_DIM=128")


def build_name(value):
    """A parameter of a test in its name: tiles, or options, without -D."""
    options = getattr(value, "options", value)
    return " ".join(option.removeprefix("-D") for option in options) if isinstance(options, list | tuple) else None


def compiled_by_nvcc(dtype, options, architecture, folder):
    """The assembler's report on the kernels of a dtype, and the file that was made."""
    source, binary = folder / "attention.cu", folder / "attention.cubin"
    source.write_text(launch.source_text(launch.SOURCES[dtype]), encoding="utf-8")
    command = [NVCC, "-cubin", "-std=c++17", f"-arch={architecture}", "-Xptxas", "-v", *options, source, "-o", binary]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stderr, binary


def assert_no_spills(report, kernels):
    """All variables of so many kernels are in registers."""
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert frames == [("0", "0", "0")] * kernels, report
