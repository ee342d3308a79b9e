"""Compiling: a source becomes a library that this process loads. Libraries are kept in the user's cache folder.

The compiler is g++, or what CXX names in the environment. A library's name is a hash of all that it was made of, so
that a change of anything, the compiler's version included, makes a new one. The folder may be deleted at any time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME = ("runtime.cpp", "warp.cpp", "checks.cpp")
FLAGS = ("-fPIC", "-fno-strict-aliasing", "-fno-exceptions", "-fstack-clash-protection", "-w")
CHECKS = ("-fsanitize=alignment,bounds,integer-divide-by-zero", "-fno-sanitize-recover=all")  # reported by checks.cpp
SHARED_SECTION = "cuda_shared"  # where cuda_cpu.h puts __shared__ variables


class EmulatorError(RuntimeError):
    """A kernel that cannot be compiled or launched, or that did something wrong while it ran."""


# ---- sanitizers ------------------------------------------------------------------------------------------------------


class Sanitizer:
    """How a kernel is compiled for a sanitizer, and what the process that runs it needs."""

    def __init__(self, library: str, symbol: str, kernel_flags: Sequence[str], runtime_flags: Sequence[str]) -> None:
        self.library, self.symbol = library, symbol
        self.kernel_flags, self.runtime_flags = tuple(kernel_flags), tuple(runtime_flags)

    def is_loaded(self) -> bool:
        """Whether this process was started with the sanitizer's library in it: it cannot be added later."""
        return hasattr(ctypes.CDLL(None), self.symbol)


SANITIZERS = {
    "address": Sanitizer(
        "libasan.so",
        "__asan_init",
        [
            "-fsanitize=address,undefined",
            f"-fsanitize-sections={SHARED_SECTION}",
            "-fno-sanitize-recover=all",
            "-fno-omit-frame-pointer",
        ],
        ["-DCUDA_CPU_ASAN"],
    ),
    "thread": Sanitizer("libtsan.so", "__tsan_init", ["-fsanitize=thread"], ["-DCUDA_CPU_TSAN"]),
}


def sanitizer_environment(sanitize: str) -> dict[str, str]:
    """The environment of a fresh process in which modules with `sanitize="address"` or `"thread"` can be run:

        subprocess.run([sys.executable, "my_script.py"], env=sanitizer_environment("address"))

    A process in which an error was found says so on its standard error output and ends with a status other than 0.
    Where ThreadSanitizer says "unexpected memory mapping", start the process behind `setarch -R`.
    EmulatorError if the compiler has no such library.
    """
    sanitizer = _sanitizer(sanitize)
    found = _output([*compiler(), f"-print-file-name={sanitizer.library}"]).strip()
    if not os.path.isabs(found):
        raise EmulatorError(
            f"{shlex.join(compiler())} has no {sanitizer.library}, which sanitize={sanitize!r} needs: use g++ "
            "(unset CXX), and install its sanitizers (Debian, Ubuntu: part of g++; Fedora: libasan, libtsan)"
        )
    return os.environ | {
        "LD_PRELOAD": " ".join(filter(None, [str(Path(found).resolve()), os.environ.get("LD_PRELOAD")])),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves memory behind
        "TSAN_OPTIONS": "report_signal_unsafe=0",
        "PYTHONMALLOC": "malloc",  # so that Python's memory is watched as well
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _sanitizer(sanitize: str) -> Sanitizer:
    if sanitize not in SANITIZERS:
        raise ValueError(f'sanitize={sanitize!r}: it is None, "address" (memory errors) or "thread" (races)')
    return SANITIZERS[sanitize]


def check_sanitizer_is_loaded(sanitize: str) -> None:
    """EmulatorError, which says how to start a process for it, unless this process can run sanitized modules."""
    if not _sanitizer(sanitize).is_loaded():
        raise EmulatorError(
            f"sanitize={sanitize!r} needs a process that was started with the sanitizer's library: subprocess.run("
            f"[sys.executable, 'my_script.py'], env=kernels.emulator.sanitizer_environment({sanitize!r}))"
        )


# ---- the compiler ----------------------------------------------------------------------------------------------------


def compiler() -> list[str]:
    """The command of the C++ compiler. EmulatorError, which says how to get one, if there is none."""
    if sys.platform != "linux":
        raise EmulatorError("the emulator runs on Linux only; on Windows use WSL, on macOS a Linux container")
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(command[0]) is None:
        raise EmulatorError(
            f"running CUDA kernels on the CPU needs a C++ compiler, and {command[0]} is not installed: "
            "sudo apt install g++ (Debian, Ubuntu, WSL), sudo dnf install gcc-c++ (Fedora), conda install gxx; "
            "another compiler is named by the environment variable CXX"
        )
    return command


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, errors="replace").stdout


@cache
def _version(command: tuple[str, ...]) -> str:
    return _output([*command, "--version"])


@cache
def _processor() -> str:
    """What -march=native depends on: the cache folder may be shared between machines."""
    if platform.machine() != "x86_64":
        return platform.machine()
    information = Path("/proc/cpuinfo").read_text(errors="replace") if Path("/proc/cpuinfo").exists() else ""
    flags = re.search(r"^flags\s*:.*$", information, re.MULTILINE)
    return flags[0] if flags else platform.processor()


def _machine_flags() -> list[str]:
    return ["-march=native"] if platform.machine() == "x86_64" else []  # float16 in one instruction


# ---- the cache -------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where compiled kernels are kept: in XDG_CACHE_HOME, or else ~/.cache; a temporary folder if that is read-only."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "minigrad" / "emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _temporary_folder()
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


@cache
def _temporary_folder() -> Path:  # of this process: another user's libraries must not be loaded
    return Path(tempfile.mkdtemp(prefix="minigrad-emulator-"))


@cache
def _own_sources() -> str:
    """The text of all that is compiled along with a kernel, and of what writes the file around it."""
    paths = [*sorted(HERE.glob("*.h")), *(HERE / name for name in (*RUNTIME, "source.py"))]
    return "".join(path.read_text(encoding="utf-8") for path in paths)


def _library(name: str, text: str, files: Callable[[], dict[str, str]], flags: list[str], linked: list[str]) -> Path:
    """The library of `text`, from the cache if it is there; `files()` are what is compiled otherwise."""
    command = [*compiler(), *_machine_flags(), *FLAGS, *flags]
    parts = [name, text, *command, "", *linked, _own_sources(), _version(tuple(compiler())), _processor()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    library = cache_folder() / f"{name}-{digest[:24]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            sources = _write(folder, files())
            objects = [source.replace(".cpp", ".o") for source in sources]
            _run(folder, [*command, f"-I{HERE}", f"-ffile-prefix-map={folder}=.", "-c", *sources])
            _run(folder, [*compiler(), "-shared", *objects, *linked, "-o", "library.so"])
            os.replace(Path(folder) / "library.so", library)  # whole or not at all, whoever else builds it
    return library


def _write(folder: str, files: dict[str, str]) -> list[str]:
    """Writes the files; the names of those to be compiled."""
    for name, text in files.items():
        (Path(folder) / name).write_text(text, encoding="utf-8")
    return [name for name in files if name.endswith(".cpp")]


def _run(folder: str, command: list[str]) -> None:
    """Runs the compiler. EmulatorError with its messages, which name the kernel's own lines."""
    environment = os.environ | {"LC_ALL": "C"}
    environment.pop("LD_PRELOAD", None)  # a sanitizer is for the kernel, not for the compiler
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", env=environment)
    if result.returncode:
        raise EmulatorError(f"{command[0]} does not compile the kernel:\n{_readable(result.stderr)}")


def _readable(messages: str) -> str:
    lines = messages.splitlines()
    shown = "\n".join(lines[:40] + ["..."] * (len(lines) > 40))
    if "Error: no such instruction" in messages or "'asm'" in messages:
        shown += (
            "\nPTX does not run on a CPU: put it into a function under #ifndef CUDA_CPU, and another of the same name "
            "for the CPU under #else"
        )
    return shown


# ---- the two libraries -----------------------------------------------------------------------------------------------


@cache
def runtime_library(sanitize: str | None) -> Path:
    """The runtime, which all kernels share."""
    files = {file: (HERE / file).read_text(encoding="utf-8") for file in RUNTIME}
    flags = _sanitizer(sanitize).runtime_flags if sanitize else ()
    return _library("runtime", "", lambda: files, ["-std=c++17", "-O3", *flags], [])


def kernel_library(code: str, options: Sequence[str], wrapper: Callable[[], str], sanitize: str | None) -> Path:
    """The library of a source, which is compiled as "kernel.cu", included by what `wrapper()` gives.

    options: all that the wrapper depends on besides the source; those that begin with -std are the compiler's.
    """
    sanitizer = _sanitizer(sanitize).kernel_flags if sanitize else ()
    flags = ["-O1", "-g", *sanitizer] if sanitize else ["-O2", *CHECKS]
    flags += [option for option in options if option.startswith("-std=")]
    runtime = str(runtime_library(sanitize))  # its path is written into the library, which so finds it

    def files() -> dict[str, str]:
        return {"kernel.cu": code, "wrapper.cpp": wrapper()}

    return _library("kernel", "\0".join([code, *options]), files, flags, [*sanitizer, runtime])


def preprocessed(code: str, definitions: Sequence[str]) -> str:
    """The source without comments and with its macros expanded."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, {"kernel.cu": code})
        _run(folder, [*compiler(), "-E", "-P", "-w", *definitions, "-x", "c++", "kernel.cu", "-o", "expanded"])
        return (Path(folder) / "expanded").read_text(encoding="utf-8")
