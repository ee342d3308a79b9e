"""Kernels under a sanitizer, each in a process of its own: the fault is named with its line, a good kernel passes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.emulator import EmulatedModule, EmulatorError, sanitizer_environment
from tests.kernels.emulator.compiled import needs_compiler

pytestmark = needs_compiler

CODE = r"""
#define KERNEL(name) extern "C" __global__ void name(float* x, int n)
KERNEL(out_of_bounds) { x[threadIdx.x + n] = 1; }
KERNEL(shared_too_short) {
    extern __shared__ float tile[];
    tile[threadIdx.x + n] = x[threadIdx.x];
}
KERNEL(out_of_an_array) {
    __shared__ float tile[64], other[64];
    float* place = tile;
    if (n == 0) place = other;
    place[threadIdx.x + n] = 1;
}
KERNEL(misaligned) { *(float4*)(x + n) = make_float4(1, 2, 3, 4); }
KERNEL(overflow) { x[0] = (float)(0x7fffffff + n); }

KERNEL(no_barrier) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = tile[63 - threadIdx.x];
}
KERNEL(no_second_barrier) {
    __shared__ float tile[64];
    for (int i = 0; i < 2; ++i) {
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        x[threadIdx.x] = tile[63 - threadIdx.x];
    }
}
KERNEL(shuffle_for_a_fence) {
    __shared__ float tile[32];
    tile[threadIdx.x] = x[threadIdx.x];
    __shfl_sync(0xffffffffu, n, 0);
    x[threadIdx.x] = tile[31 - threadIdx.x];
}
KERNEL(all_add) { x[0] += n; }

KERNEL(good) {
    __shared__ float tile[64];
    extern __shared__ float more[];
    more[threadIdx.x] = 1;
    for (int i = 0; i < 3; ++i) {
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        float sum = tile[63 - threadIdx.x];
        for (int m = 16; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
        __syncwarp();
        x[threadIdx.x] = sum + more[threadIdx.x];
        __syncthreads();
    }
    atomicAdd(&x[0], 1.0f);
}
KERNEL(deadlock) { if (threadIdx.x < 3) __syncwarp(); else __syncthreads(); }
"""

RUN = """
import sys
import numpy as np
from kernels.emulator import EmulatedModule, EmulatorError
from tests.kernels.emulator.test_sanitizers import CODE

module = EmulatedModule(CODE, sanitize=sys.argv[1])
x = np.zeros(64, np.float32)
for name in sys.argv[2:]:
    name, _, n = name.partition(":")
    try:
        module.get_function(name)((2,), (32 if "fence" in name else 64,), (x, np.int32(n or 0)), shared_mem=256)
        print(name, "done", flush=True)
    except EmulatorError as error:
        print(error, flush=True)
"""


def run(sanitize, *names):
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", RUN, sanitize, *names]
    try:
        environment = sanitizer_environment(sanitize)
    except EmulatorError as error:
        pytest.skip(str(error))
    result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    if "unexpected memory mapping" in result.stderr:
        pytest.skip("ThreadSanitizer needs addresses below those that this system gives: setarch -R")
    return result


def line(text):
    """kernel.cu: and the number of the line that contains this text."""
    return f"kernel.cu:{next(i for i, row in enumerate(CODE.splitlines(), 1) if text in row)}"


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_a_good_kernel_passes_and_other_errors_stay_errors(sanitize):
    result = run(sanitize, "good", "deadlock", "good")
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"good done\ndeadlock: deadlock in block .*\ngood done\n", result.stdout), result.stdout


@pytest.mark.parametrize(
    "fault, message, where",
    [
        ("out_of_bounds:1", "AddressSanitizer: heap-buffer-overflow", "out_of_bounds"),
        ("shared_too_short:1", "AddressSanitizer: use-after-poison", "tile[threadIdx.x + n] ="),
        ("out_of_an_array:32", "insufficient space for an object of type 'float'", "place[threadIdx.x + n]"),
        ("misaligned:1", "misaligned address", "misaligned"),
        ("overflow:1", "signed integer overflow", "overflow"),
    ],
)
def test_wrong_addresses_and_arithmetic_are_found(fault, message, where):
    result = run("address", "good", fault)
    assert result.returncode != 0 and result.stdout == "good done\n"
    assert message in result.stderr and line(where) in result.stderr, result.stderr


def test_races_are_found():
    faults = ["no_barrier", "no_second_barrier", "shuffle_for_a_fence", "all_add:1"]
    result = run("thread", *faults)
    assert result.returncode != 0
    found = re.findall(r"SUMMARY: ThreadSanitizer: data race (kernel.cu:\d+) in (\w+)", result.stderr)
    assert {name for _, name in found} == {fault.partition(":")[0] for fault in faults}, result.stderr
    assert line("tile[63 - threadIdx.x];") in result.stderr


def test_a_process_without_the_sanitizers_library_says_how_to_start_one():
    for sanitize in ("address", "thread"):
        with pytest.raises(EmulatorError, match=rf"sanitize='{sanitize}' needs a process .*sanitizer_environment\("):
            EmulatedModule(CODE, sanitize=sanitize)
    with pytest.raises(ValueError, match=r'sanitize=.memory.: it is None, "address" .* or "thread"'):
        EmulatedModule(CODE, sanitize="memory")
