"""Compiling for the CPU: messages, the cache of compiled kernels, and machines that lack something."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kernels.emulator import EmulatedModule, EmulatorError, build
from tests.cupy_standin.cuda import RawModule
from tests.kernels.emulator.compiled import needs_compiler, why_nothing_compiles

ROOT = Path(__file__).parents[3]
CODE = 'extern "C" __global__ void fill(float* x, float value) { x[threadIdx.x] = value + EXTRA; }'


@pytest.fixture
def new_cache(tmp_path, monkeypatch):
    """An empty cache for compiled kernels; the runtime alone is in it."""
    runtime = build.runtime_library(None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "minigrad" / "emulator"
    folder.mkdir(parents=True)
    shutil.copy(runtime, folder)
    return folder


def kernels_in(folder):
    return set(folder.glob("kernel-*"))


def filled(extra=0):
    x = np.zeros(4, np.float32)
    EmulatedModule(CODE, (f"-DEXTRA={extra}",)).get_function("fill")((1,), (4,), (x, np.float32(1)))
    return x.tolist()


# ---- what is missing -------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_error_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmulatorError, match=r"needs a C\+\+ compiler, and g\+\+ is not installed: sudo apt"):
        filled()
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(EmulatorError, match=r"no-such-compiler is not installed: .* the environment variable CXX"):
        filled()


@pytest.fixture
def another_compiler(tmp_path, monkeypatch):
    """A g++ that compiles nothing and says that it is another."""
    path = tmp_path / "g++"
    path.write_text("#!/bin/sh\necho 'Apple clang version 17.0.0'\n[ \"$1\" = --version ]\n")
    path.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for function in (build._version, build._knows_float16):  # which keep what they know of "g++"
        function.cache_clear()
    yield
    for function in (build._version, build._knows_float16):
        function.cache_clear()


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_on_other_systems_the_error_says_what_to_use_and_tests_are_skipped(platform, another_compiler, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    reason = "the emulator runs on Linux only; on Windows use WSL"
    with pytest.raises(EmulatorError, match=reason):
        filled()
    assert reason in why_nothing_compiles()
    with pytest.raises(pytest.skip.Exception, match=reason):
        RawModule(code=CODE)


def test_a_compiler_that_is_too_old_is_named(another_compiler, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(EmulatorError, match=r"g\+\+ 12 or newer .* g\+\+ has not: Apple clang version 17.0.0. Install"):
        filled()
    assert "CXX=g++-12" in why_nothing_compiles()


@needs_compiler
def test_a_compiler_without_16_bit_floats_is_too_old(monkeypatch):
    """The real one, which is told not to know them, as g++ 11."""
    monkeypatch.setenv("CXX", shlex.join([*build.compiler(), "-D_Float16=no_such_type"]))
    with pytest.raises(
        EmulatorError, match=r"g\+\+ 12 or newer \(on ARM 13\), whose C\+\+ has _Float16; g\+\+ -D_Float16=n"
    ):
        filled()


def test_importing_needs_no_compiler(tmp_path):
    command = [sys.executable, "-c", "import kernels.emulator as e; e.EmulatedModule('')"]
    subprocess.run(command, env=os.environ | {"PATH": str(tmp_path)}, cwd=ROOT, check=True)


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
    assert len(kernels_in(new_cache)) == 1
    monkeypatch.setattr(build, "_run", lambda folder, command: pytest.fail("compiled again"))
    assert filled(1) == [2] * 4


@needs_compiler
def test_another_option_or_compiler_makes_another_library(new_cache, monkeypatch):
    filled(1)
    filled(2)
    assert len(kernels_in(new_cache)) == 2
    monkeypatch.setattr(build, "_version", lambda command: "another version")
    assert filled(2) == [3] * 4
    assert len(kernels_in(new_cache)) == 3


@needs_compiler
def test_processes_that_compile_the_same_do_not_disturb_each_other(new_cache):
    code = "from tests.kernels.emulator.test_build import filled; print(filled(5))"
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    assert [process.communicate()[0] for process in processes] == ["[6.0, 6.0, 6.0, 6.0]\n"] * 2
    names = [path.name for path in new_cache.iterdir()]
    assert sorted(name.partition("-")[0] for name in names) == ["kernel", "runtime"], names


def made_unused(path, hours):
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


@needs_compiler
def test_what_was_not_used_for_longest_is_removed_when_there_is_too_much(new_cache, monkeypatch):
    kernels = {}
    for extra in range(4):
        known = kernels_in(new_cache)
        filled(extra)
        (kernels[extra],) = kernels_in(new_cache) - known
        made_unused(kernels[extra], hours=9 - extra)
    sizes = [path.stat().st_size for path in new_cache.iterdir()]
    monkeypatch.setattr(build, "MOST_BYTES", sum(sizes))
    assert filled(0) == [1] * 4  # used again, and so the newest
    assert all(path.exists() for path in kernels.values())
    filled(4)  # is one too many
    assert {extra for extra, path in kernels.items() if path.exists()} == {0, 2, 3}
    assert filled(1) == [2] * 4  # compiled again
    assert {extra for extra, path in kernels.items() if path.exists()} == {0, 1, 3}


@needs_compiler
def test_what_was_used_of_late_is_never_removed(new_cache, monkeypatch):
    monkeypatch.setattr(build, "MOST_BYTES", 0)
    filled(1)
    filled(2)
    assert len(kernels_in(new_cache)) == 2


@needs_compiler
def test_processes_that_remove_the_same_do_not_disturb_each_other(new_cache):
    code = """if True:
        from kernels.emulator import build
        from tests.kernels.emulator.test_build import filled
        build.MOST_BYTES = 0
        assert filled(5) == [6] * 4
    """
    old = [new_cache / f"kernel-{number}.so" for number in range(5000)]
    for path in old:
        path.write_text("not used any more")
        made_unused(path, hours=2)
    processes = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert not kernels_in(new_cache) & set(old) and len(kernels_in(new_cache)) == 1


@needs_compiler
def test_a_failed_build_leaves_nothing_behind(new_cache):
    with pytest.raises(EmulatorError):
        filled("no_such_name")
    assert [path.name.partition("-")[0] for path in new_cache.iterdir()] == ["runtime"]


@needs_compiler
def test_a_home_that_cannot_be_written_to_is_no_obstacle(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert filled(3) == [4] * 4


@needs_compiler
def test_fibers_of_other_processors_do_the_same(new_cache, monkeypatch):
    """The way to change stacks where there is no assembly for it: slower."""
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DCUDA_CPU_UCONTEXT"))
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


# ---- a cache in which something is wrong -----------------------------------------------------------------------------


@needs_compiler
def test_the_cache_may_be_deleted_while_a_process_uses_it(new_cache):
    assert filled(1) == [2] * 4
    shutil.rmtree(new_cache.parents[1])
    assert filled(2) == [3] * 4
    assert filled(1) == [2] * 4


@needs_compiler
def test_a_relative_cache_folder_is_ignored(new_cache, tmp_path, monkeypatch):
    """As the specification of XDG_CACHE_HOME has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert build.cache_folder() == tmp_path / "home" / ".cache" / "minigrad" / "emulator"
    assert filled(1) == [2] * 4
    assert not (tmp_path / "relative").exists()


@needs_compiler
@pytest.mark.parametrize("content", [b"", bytes(5000)])
@pytest.mark.parametrize("kind", ["kernel", "runtime"])
def test_a_library_that_cannot_be_loaded_is_made_anew(kind, content, new_cache):
    code = "from tests.kernels.emulator.test_build import filled; print(filled(1))"

    def fresh_process():
        return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    printed = fresh_process()
    for path in new_cache.glob(kind + "-*"):
        path.write_bytes(content)
    assert fresh_process() == printed == "[2.0, 2.0, 2.0, 2.0]\n"
    assert all(path.stat().st_size > 5000 for path in new_cache.iterdir())


@needs_compiler
def test_a_kernel_that_cannot_be_loaded_is_an_error():
    code = 'extern "C" int nowhere(); extern "C" __global__ void f(int* x) { *x = nowhere(); }'
    with pytest.raises(EmulatorError, match=r"kernel cannot be loaded: .*undefined symbol: nowhere.*\(noexec\), name"):
        EmulatedModule(code).get_function("f")


@needs_compiler
def test_what_killed_builds_left_is_removed(new_cache):
    old, young = new_cache / "tmp1", new_cache / "tmp2"
    for folder in (old, young):
        folder.mkdir()
        (folder / "kernel.cu").touch()
    made_unused(old, hours=2)
    filled(6)
    assert not old.exists() and young.exists()


@needs_compiler
def test_a_temporary_folder_is_removed_at_the_end_and_not_by_forked_processes(tmp_path):
    code = """if True:
        import os, sys
        from kernels.emulator import build
        from tests.kernels.emulator.test_build import filled
        assert filled(1) == [2] * 4
        child = os.fork()
        assert filled(2) == [3] * 4
        if child:
            os.waitpid(child, 0)
            print(len(list(build.cache_folder().glob("kernel-*"))))
    """
    (tmp_path / "file").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "2\n"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "command, message",
    [
        ("g++ '", r"the environment variable CXX is \"g\+\+ '\", which is no command: No closing quotation"),
        ("/bin/false", "/bin/false --version ends with status 1"),
        ("/bin/true", r"needs g\+\+ 12 or newer .* /bin/true has not"),
    ],
)
def test_a_compiler_that_is_none_is_named(command, message, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("CXX", command)
    with pytest.raises(EmulatorError, match=message):
        filled()


@needs_compiler
def test_a_missing_brace_is_said():
    with pytest.raises(EmulatorError, match="does that lack a closing brace"):
        EmulatedModule('extern "C" __global__ void f(int* x) { *x = 1;').get_function("f")
