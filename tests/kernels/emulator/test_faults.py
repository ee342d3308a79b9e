"""What a kernel does wrong is found, and said with the line of its source. Each kernel here has one fault."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from kernels.emulator import EmulatorError, running
from tests.kernels.emulator.compiled import compiled, needs_compiler

pytestmark = needs_compiler

CODE = r"""
#include <assert.h>
#define ALL 0xffffffffu
#define KERNEL(name) extern "C" __global__ void name(float* x, int n)

KERNEL(no_barrier) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = tile[63 - threadIdx.x];
}
KERNEL(barrier_in_both_branches) {
    if (threadIdx.x < n)
        __syncthreads();  // line A
    else
        __syncthreads();  // line B
}
KERNEL(return_before_a_barrier) {
    if (threadIdx.x >= n) return;
    __syncthreads();  // line C
}
KERNEL(barrier_of_some) {
    if (threadIdx.x < n) __syncthreads();  // line D
}
KERNEL(part_of_a_warp) {
    if (threadIdx.x < n)
        __shfl_xor_sync(ALL, x[0], 1);  // line E
    else
        __syncthreads();  // line F
}
KERNEL(two_operations_of_a_warp) {
    if (threadIdx.x < n)
        __ballot_sync(ALL, 1);  // line G
    else
        __any_sync(ALL, 1);  // line H
}
KERNEL(not_in_its_mask) { __syncwarp(0xff); }  // line I
KERNEL(misaligned) { ((float4*)(x + 1))->x = 1; }  // line J
KERNEL(out_of_an_array) {
    __shared__ float rows[4][8];
    rows[n % 4][n] = 1;  // line K
}
KERNEL(divided_by_zero) { x[0] = 5 / (n - n); }  // line L
KERNEL(divided_by_minus_one) { x[0] = (-2147483647 - n) / (n - 2); }
KERNEL(asserts) { assert(x[0] > n); }  // line M
KERNEL(traps) { if (threadIdx.x == 2) __trap(); }  // line N
KERNEL(null_pointer) { x = nullptr; x[n] = 1; }
KERNEL(deep) { volatile float much[100000]; much[0] = x[0]; x[1] = much[n]; }
KERNEL(past_shared_memory) {
    extern __shared__ float tile[];
    if (threadIdx.x == 0) tile[n] = 1;
}
KERNEL(reads_past_shared_memory) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = 1;
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x + n];
}
KERNEL(fine) { __syncthreads(); x[threadIdx.x] = n; }
"""


def line(mark):
    """kernel.cu: and the number of the line that has this mark."""
    return f"kernel.cu:{next(i for i, text in enumerate(CODE.splitlines(), 1) if text.endswith('line ' + mark))}"


def launch(name, n, block=64, shared_mem=0):
    x = np.arange(64, dtype=np.float32)
    compiled(CODE).get_function(name)((1,), (block,), (x, np.int32(n)), shared_mem=shared_mem)
    return x


MESSAGES = """
barrier_in_both_branches 40: (40,0,0) of block (0,0,0): divergent __syncthreads: it is at B, others wait at A
return_before_a_barrier 40: thread (40,0,0) of block (0,0,0): it has returned, while others wait in __syncthreads at C
barrier_of_some 40: it has returned, while others wait in __syncthreads at D
part_of_a_warp 20: 20 threads (0 ...) wait in __shfl_xor_sync at E, 44 threads (20 ...) wait in __syncthreads at F
two_operations_of_a_warp 20: in __any_sync at H with mask ffffffff, others wait in __ballot_sync at G with mask ffffffff
not_in_its_mask 0: thread (8,0,0) of block (0,0,0): __syncwarp at I: lane 8 is not in its own mask 000000ff
misaligned 0: at J: that of 'struct float4' must be a multiple of 16
out_of_an_array 8: index out of bounds at K: 8 of 'float [8]'
divided_by_zero 0: division by zero of 'int' at L
divided_by_minus_one 1: an integer was divided by zero, or the smallest of its type by -1
asserts 3: assertion failed at M: x[0] > n
traps 0: thread (2,0,0) of block (0,0,0): __trap at N
null_pointer 0: memory access fault at address (nil)
deep 0: too many local variables
"""
FAULTS = [re.fullmatch(r"(\w+) (\d+): (.*)", text).groups() for text in MESSAGES.split("\n") if text]


@pytest.mark.parametrize("name, n, message", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_is_an_error_and_leaves_nothing_broken(name, n, message):
    message = re.sub(r"(?<=at )[A-Z]\b", lambda mark: line(mark[0]), message)
    for _ in range(2):
        with pytest.raises(EmulatorError, match=re.escape(message)) as error:
            launch(name, int(n))
        assert str(error.value).startswith(name + ": ")
        assert (launch("fine", 5) == 5).all()


def test_a_thread_that_returned_before_others_came_to_the_barrier():
    with running("lifo"), pytest.raises(EmulatorError, match=re.escape(f"__syncthreads at {line('C')}, after another")):
        launch("return_before_a_barrier", 40)


@pytest.mark.parametrize("order", ["fifo", "lifo", "random"])
def test_a_missing_barrier_gives_nan(order):
    with running(order):
        assert np.isnan(launch("no_barrier", 0)).any()


def test_writes_past_dynamic_shared_memory():
    launch("past_shared_memory", 15, shared_mem=64)
    with pytest.raises(EmulatorError, match="past its dynamic shared memory: shared_mem=64 bytes were given, byte 64"):
        launch("past_shared_memory", 16, shared_mem=64)


def test_what_is_read_past_dynamic_shared_memory_is_nan():
    x = launch("reads_past_shared_memory", 4, shared_mem=256)
    assert (x[:60] == 1).all() and np.isnan(x[60:]).all()


def test_signals_are_handled_again_as_before():
    """A kernel's wrong address ends in an error, the process's own still ends the process."""
    code = (
        "import ctypes, tests.kernels.emulator.test_faults as faults\n"
        "try: faults.launch('null_pointer', 0)\n"
        "except faults.EmulatorError: print('found', flush=True)\n"
        "ctypes.string_at(0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "found\n" and result.returncode < 0


@pytest.mark.parametrize("name", ["atomicMax", "atomicSub", "atomicXor"])
def test_atomic_operations_that_a_gpu_has_for_integers_alone(name):
    code = f'extern "C" __global__ void atomic(float* x) {{ {name}(x, 1.0f); }}'
    with pytest.raises(EmulatorError, match=f"{name} takes integers alone"):
        compiled(code).get_function("atomic")


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------

ENDLESS = r"""
extern "C" __global__ void waits(volatile int* x) {
    if (threadIdx.x == 0) printf("runs\n");
    while (x[threadIdx.x] == 0) {}
}
extern "C" __global__ void meets(volatile int* x) {
    if (threadIdx.x == 0) printf("runs\n");
    while (x[threadIdx.x] == 0) __syncthreads();
}
extern "C" __global__ void prints(volatile int* x) {
    while (x[threadIdx.x] == 0) printf("runs\n");
}
extern "C" __global__ void sets(int* x) { x[threadIdx.x] = 1; }
"""
INTERRUPTED = """
import signal, sys, threading
import numpy as np
import tests.kernels.emulator.test_faults as faults

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it was ignored, as in the background
x = np.zeros(2, np.int32)
ended = threading.Event()

def launch(name):
    try:
        faults.compiled(faults.ENDLESS).get_function(name)((1,), (2,), (x,))
    except faults.EmulatorError as error:
        print(error)
    ended.set()

way, name = sys.argv[1:]
try:
    if way == "main":
        launch(name)
    else:
        threading.Thread(target=launch, args=[name]).start()
        threading.Event().wait(60)
except KeyboardInterrupt:
    if way == "thread":
        ended.wait(60)
    print("KeyboardInterrupt")
launch("sets")
print(x)
"""


def interrupted(*args):
    """What a process prints, and its status, that is interrupted once a kernel of it runs.

    A line that the kernel is printing then may be torn, and what comes after it be on the same line.
    """
    command = [sys.executable, "-c", INTERRUPTED, *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "runs\n"
            process.send_signal(signal.SIGINT)
            return process.communicate(timeout=60)[0], process.returncode
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["waits", "meets", "prints"])
def test_a_kernel_that_never_ends_can_be_interrupted(name):
    printed, status = interrupted("main", name)
    assert printed.endswith("KeyboardInterrupt\n[1 1]\n") and "interrupted" not in printed and status == 0


@pytest.mark.parametrize("name", ["waits", "prints"])
def test_a_kernel_of_another_thread_can_be_interrupted(name):
    printed, status = interrupted("thread", name)
    error = rf"{name}: thread \([01],0,0\) of block \(0,0,0\): interrupted\n"
    assert re.search(error + r"KeyboardInterrupt\n\[1 1\]\n$", printed) and status == 0
