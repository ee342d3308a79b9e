"""Compiling for the CPU: messages, the cache of compiled kernels, and machines that lack something."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels.emulator import EmulatedModule, EmulatorError, build
from tests.kernels.emulator.compiled import needs_compiler

CODE = 'extern "C" __global__ void fill(float* x, float value) { x[threadIdx.x] = value + EXTRA; }'


@pytest.fixture
def new_cache(tmp_path, monkeypatch):
    """An empty cache for compiled kernels; the runtime alone is in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "minigrad" / "emulator"
    folder.mkdir(parents=True)
    return folder


def filled(extra=0):
    x = np.zeros(4, np.float32)
    EmulatedModule(CODE, (f"-DEXTRA={extra}",)).get_function("fill")((1,), (4,), (x, np.float32(1)))
    return x.tolist()


# ---- what is missing -------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_error_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorError, match=r"needs a C\+\+ compiler, and g\+\+ is not installed: sudo apt"):
        filled()
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(EmulatorError, match=r"no-such-compiler is not installed: .* the environment variable CXX"):
        filled()


def test_on_other_systems_the_error_says_what_to_use(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(EmulatorError, match="the emulator runs on Linux only; on Windows use WSL"):
        filled()


def test_importing_needs_no_compiler(tmp_path):
    command = [sys.executable, "-c", "import kernels.emulator as e; e.EmulatedModule('')"]
    root = Path(__file__).parents[3]
    subprocess.run(command, env=os.environ | {"PATH": str(tmp_path)}, cwd=root, check=True)


# ---- messages --------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    "body, message",
    [
        ("x[0] = y;", r"kernel\.cu:3:.*error: 'y' was not declared(.|\n)*3 \|     x\[0\] = y;"),
        ("x[0] = max(1, 2.5f);", r"kernel\.cu:3:.*error: no matching function for call to 'max\(int, float\)'"),
        ("throw 1;", r"kernel\.cu:3:.*exception handling disabled"),
        ('asm volatile("mov.u32 %0, %laneid;" : "=r"(x[0]));', r"put it into a function under #ifndef CUDA_CPU"),
        ('asm("bar.sync 0;");', r"put it into a function under #ifndef CUDA_CPU"),
    ],
)
def test_a_mistake_is_shown_in_the_kernels_own_line(body, message):
    code = f'\nextern "C" __global__ void f(float* x) {{\n    {body}\n}}'
    with pytest.raises(EmulatorError, match=message):
        EmulatedModule(code).get_function("f")


@needs_compiler
def test_line_directives_name_the_parts_of_a_source():
    code = '#line 7 "part.cuh"\nextern "C" __global__ void f(float* x) {\n    if (threadIdx.x) __syncthreads();\n}'
    with pytest.raises(EmulatorError, match=r"wait in __syncthreads at part.cuh:8|__syncthreads at part.cuh:8, after"):
        EmulatedModule(code).get_function("f")((1,), (2,), (np.zeros(1, np.float32),))


@needs_compiler
def test_names_of_a_source_may_be_those_of_the_c_library():
    code = """
    struct div_t { int quot; };
    __device__ float write(float x) { return x + 1; }
    __device__ float max(float x) { return write(x); }
    extern "C" __global__ void remove(float* x) { div_t d = {2}; x[0] = max(x[0]) * d.quot; }
    """
    x = np.ones(1, np.float32)
    EmulatedModule(code).get_function("remove")((1,), (1,), (x,))
    assert x[0] == 4


# ---- the cache -------------------------------------------------------------------------------------------------------


@needs_compiler
def test_a_source_is_compiled_once(new_cache, monkeypatch):
    assert filled(1) == [2] * 4
    assert len(list(new_cache.iterdir())) == 1
    monkeypatch.setattr(build, "_run", lambda folder, command: pytest.fail("compiled again"))
    assert filled(1) == [2] * 4


@needs_compiler
def test_another_option_or_compiler_makes_another_library(new_cache, monkeypatch):
    filled(1)
    filled(2)
    assert len(list(new_cache.iterdir())) == 2
    monkeypatch.setattr(build, "_version", lambda command: "another version")
    assert filled(2) == [3] * 4
    assert len(list(new_cache.iterdir())) == 3


@needs_compiler
def test_processes_that_compile_the_same_do_not_disturb_each_other(new_cache):
    code = "from tests.kernels.emulator.test_build import filled; print(filled(5))"
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[3]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(2)]
    assert [process.communicate()[0] for process in processes] == ["[6.0, 6.0, 6.0, 6.0]\n"] * 2
    names = [path.name for path in new_cache.iterdir()]
    assert sorted(name.partition("-")[0] for name in names) == ["kernel", "runtime"], names


@needs_compiler
def test_a_failed_build_leaves_nothing_behind(new_cache):
    with pytest.raises(EmulatorError):
        filled("no_such_name")
    assert list(new_cache.iterdir()) == []


@needs_compiler
def test_a_home_that_cannot_be_written_to_is_no_obstacle(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert filled(3) == [4] * 4


@needs_compiler
def test_fibers_of_other_processors_do_the_same(new_cache, monkeypatch):
    """The way to change stacks where there is no assembly for it: slower."""
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DCUDA_CPU_UCONTEXT"))
    build.runtime_library.cache_clear()
    code = """extern "C" __global__ void sum(int* x) {
        x[threadIdx.x] += __shfl_xor_sync(~0u, x[threadIdx.x], 1);
        __syncthreads();
        int last = x[63];
        __syncthreads();
        x[threadIdx.x] += last;
        if (last < 0) *(int*)8 = 0;
    }"""
    x = np.arange(64, dtype=np.int32)
    kernel = EmulatedModule(code).get_function("sum")
    kernel((1,), (64,), (x,))
    assert x.tolist() == [4 * (i // 2) + 1 + 125 for i in range(64)]
    with pytest.raises(EmulatorError, match="memory access fault at address 0x8"):
        kernel((1,), (64,), (x - 1000,))
    build.runtime_library.cache_clear()
