"""Compiling: a source becomes a library that this process loads. Libraries are kept in the user's cache folder.

The compiler is g++, or what CXX names in the environment. A library's name is a hash of all that it was made of, so
that a change of anything, the compiler's version included, makes a new one. Where they take more than MOST_BYTES,
those that were not used for longest are removed. The folder may be deleted at any time, and a library that was cut
short, or cannot be read, is made anew.
"""

from __future__ import annotations

import atexit
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
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME = ("runtime.cpp", "warp.cpp", "checks.cpp")
FLAGS = ("-fPIC", "-fno-strict-aliasing", "-fno-exceptions", "-fstack-clash-protection", "-w")
CHECKS = ("-fsanitize=alignment,bounds,integer-divide-by-zero", "-fno-sanitize-recover=all")  # reported by checks.cpp
MOST_BYTES = 512 << 20  # of all libraries in the cache
KEPT_FOR = 3600.0  # seconds for which a library is kept in any case: another process may be about to load it
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
    """The command of the C++ compiler. EmulatorError, which says how to get one, if none is there that will do."""
    if sys.platform != "linux":
        raise EmulatorError("the emulator runs on Linux only; on Windows use WSL, on macOS a Linux container")
    named = os.environ.get("CXX", "")
    try:
        command = shlex.split(named) or ["g++"]
    except ValueError as error:
        raise EmulatorError(f"the environment variable CXX is {named!r}, which is no command: {error}") from None
    if shutil.which(command[0]) is None:
        raise EmulatorError(
            f"running CUDA kernels on the CPU needs a C++ compiler, and {command[0]} is not installed: "
            "sudo apt install g++ (Debian, Ubuntu, WSL), sudo dnf install gcc-c++ (Fedora), conda install gxx; "
            "another compiler is named by the environment variable CXX"
        )
    if not _knows_float16(tuple(command)):
        version = _version(tuple(command)).partition("\n")[0]
        raise EmulatorError(
            f"running CUDA kernels on the CPU needs g++ 12 or newer (on ARM 13), whose C++ has _Float16; "
            f"{shlex.join(command)} has not: {version}. Install a newer one, as by sudo apt install g++-12, and name "
            "it: CXX=g++-12"
        )
    return command


@cache
def _knows_float16(command: tuple[str, ...]) -> bool:
    test = [*command, "-x", "c++", "-S", "-", "-o", "-"]
    result = subprocess.run(test, input="_Float16 number;\n", capture_output=True, text=True, env=_environment())
    return result.returncode == 0 and "number" in result.stdout


def _environment() -> dict[str, str]:
    """Of the compiler: it speaks English, and a sanitizer is for the kernel alone."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | {"LC_ALL": "C"}


def _output(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        raise EmulatorError(f"{shlex.join(command)} ends with status {result.returncode}: {result.stderr.strip()}")
    return result.stdout


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
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # and so to be ignored (XDG Base Directory Specification)
        base = os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "minigrad" / "emulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _temporary_folder(os.getpid())
    return folder if os.access(folder, os.W_OK) else _temporary_folder(os.getpid())


@cache
def _temporary_folder(process: int) -> Path:  # another user's libraries must not be loaded
    folder = Path(tempfile.mkdtemp(prefix="minigrad-emulator-"))

    def remove() -> None:
        if os.getpid() == process:  # and not one that was forked from it
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


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
    if not library.exists() or _why_not_loaded(library):
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            sources = _write(folder, files())
            objects = [source.replace(".cpp", ".o") for source in sources]
            _run(folder, [*command, f"-I{HERE}", f"-ffile-prefix-map={folder}=.", "-c", *sources])
            _run(folder, [*compiler(), "-shared", *objects, *linked, "-o", "library.so"])
            made = Path(folder) / "library.so"
            with made.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(made, library)  # whole or not at all, whoever else builds it, and should the power fail
        if reason := _why_not_loaded(library):
            raise EmulatorError(
                f"the compiled kernel cannot be loaded: {reason}. If {library.parent} may not hold programs (noexec), "
                "name a folder that may in the environment variable XDG_CACHE_HOME"
            )
        _remove_unused(library.parent)
    with suppress(OSError):  # another user's, or removed just now
        os.utime(library)  # used now
    return library


def _why_not_loaded(library: Path) -> str:
    """Loads the library; the error if that is not possible."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return ""


def _remove_unused(folder: Path) -> None:
    """Removes libraries, the longest unused first, until the others take MOST_BYTES at most.

    And what builds left behind that were killed.
    Other processes may do the same at the same time. One that has loaded a library keeps it.
    """
    libraries = []
    for path in folder.glob("*.so"):
        with suppress(FileNotFoundError):
            libraries.append((path, path.stat()))
    total = sum(status.st_size for _, status in libraries)
    for path, status in sorted(libraries, key=lambda library: library[1].st_mtime):
        if total <= MOST_BYTES or time.time() - status.st_mtime < KEPT_FOR:
            break
        with suppress(FileNotFoundError):
            if path.stat().st_mtime == status.st_mtime:  # still
                path.unlink()
        total -= status.st_size
    for path in folder.glob("tmp*"):  # in which a library is made
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime >= KEPT_FOR:
                shutil.rmtree(path, ignore_errors=True)


def _write(folder: str, files: dict[str, str]) -> list[str]:
    """Writes the files; the names of those to be compiled."""
    for name, text in files.items():
        (Path(folder) / name).write_text(text, encoding="utf-8")
    return [name for name in files if name.endswith(".cpp")]


def _run(folder: str, command: list[str]) -> None:
    """Runs the compiler. EmulatorError with its messages, which name the kernel's own lines."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", env=_environment())
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
    if "fatal error" in messages and "No such file or directory" in messages:
        shown += (
            "\nThe emulator has no headers of CUDA, and a source is one string, without files of its own to include; "
            "what is for a GPU alone goes under #ifndef CUDA_CPU"
        )
    if "exports.h" in messages:
        shown += "\nexports.h is what follows the kernel's source: does that lack a closing brace?"
    return shown


# ---- the two libraries -----------------------------------------------------------------------------------------------


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
