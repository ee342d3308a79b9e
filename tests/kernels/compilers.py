"""Kernels as a GPU gets them, made on a machine that has none: by nvcc, and by NVRTC as CuPy has it do it.

A test that asks for a tool which is not there is skipped. NVRTC and the disassembler come with the extra
`kernels-check`, nvcc with CUDA itself.
"""

import functools
import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

# Each with the GPUs that it compiles for: sm_80 is the A100, sm_90 the H100 and H200.
COMPILERS = [("nvcc", "sm_80"), ("nvcc", "sm_90"), ("nvrtc", "sm_90"), ("nvrtc", "sm_80")]
# What cupy.RawModule adds to a module's options, beside -arch=sm_90 or whatever the GPU is, and the folders of CUDA's
# and its own headers, of which the sources include none (cupy 14.2: `_compile_with_cache_cuda` in cuda/compiler.py).
OPTIONS_OF_CUPY = ("--std=c++17", "-ftz=true", "--device-as-default-execution-space")


@dataclass(frozen=True)
class Kernel:
    """What the assembler reports of a kernel."""

    registers: int  # of a thread
    stack: int  # bytes of a thread's variables that are in memory instead, because they are indexed
    spilled: int  # bytes, stored and loaded, because there are too few registers


@dataclass(frozen=True)
class Binary:
    """What a compiler made of a source."""

    report: str
    content: bytes

    @property
    def kernels(self) -> dict[str, Kernel]:
        found = re.findall(
            r"Function properties for (\w+)\n\D*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill "
            r"loads\n.*Used (\d+) registers",
            self.report,
        )
        return {name: Kernel(int(r), int(stack), int(out) + int(back)) for name, stack, out, back, r in found}

    def machine_code(self) -> dict[str, str]:
        """By kernel, the instructions of the GPU."""
        tool = tool_of_cuda("nvdisasm")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kernels.cubin")
            path.write_bytes(self.content)
            text = subprocess.run([tool, path], capture_output=True, text=True, check=True).stdout
        return dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^//-----|\Z)", text, re.MULTILINE | re.DOTALL))


@functools.cache
def compiled(compiler: str, architecture: str, code: str, options: tuple[str, ...]) -> Binary:
    """`code`, compiled with the options of a module (-D...); once for all tests."""
    return {"nvcc": _by_nvcc, "nvrtc": _by_nvrtc}[compiler](code, (*options, f"-arch={architecture}"))


def assert_no_spills(binary: Binary, *names: str) -> None:
    """All variables of the kernels, which are these, lie in registers."""
    assert binary.kernels.keys() == set(names), binary.report
    assert all(kernel.stack == kernel.spilled == 0 for kernel in binary.kernels.values()), binary.kernels


def tool_of_cuda(name: str) -> str:
    """The path of a tool: in NVIDIA's Python packages, or in PATH, where it may be older than what it is to read."""
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    path = next(map(str, sorted(packages.glob(f"*/bin/{name}"))), None) or shutil.which(name)
    return path or pytest.skip(f"{name} is not installed")


def _by_nvcc(code: str, options: tuple[str, ...]) -> Binary:
    tool = tool_of_cuda("nvcc")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernels.cu"), Path(folder, "kernels.cubin")
        source.write_text(code, encoding="utf-8")
        command = [tool, "-cubin", "-std=c++17", "-Xptxas", "-v", *options, source, "-o", made]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return Binary(result.stderr, made.read_bytes())


def _by_nvrtc(code: str, options: tuple[str, ...]) -> Binary:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"nvidia-cuda-nvrtc is not installed: {error}")
    program = nvrtc.nvrtcCreateProgram(code.encode(), b"kernels.cu", 0, [], [])[1]
    flags = [option.encode() for option in (*options, *OPTIONS_OF_CUPY, "--ptxas-options=-v")]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    content = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, content)
    return Binary(log.decode(), bytes(content))
