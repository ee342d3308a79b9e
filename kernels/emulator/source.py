"""Reading a kernel's source: its options, its kernels, and the file around it that is compiled for the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernels.emulator.build import EmulatorError, preprocessed

# What is changed in a source before it is compiled. Comments and strings are found as well, and left as they are.
COMMENT = r"/\*.*?(?:\*/|\Z)|//(?:\\\n|[^\n])*"
STRING = r'R"(?P<end>[^()\\\s]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\''
INCLUDE = r"#[ \t]*include[ \t]*<(?P<header>[^>\n]*)>"
C_KERNEL = r'extern\s+"C"(?=\s+(?:void\s+)?(?:__global__|__launch_bounds__)\b)'
# `extern __shared__ float tile[];` declares memory of a size given at launch: no macro can say that to a C++ compiler.
ALIGNMENT = r"(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?"
DYNAMIC_SHARED = rf"extern\s+__shared__\s+{ALIGNMENT}(?P<type>[\w:<>\s]+?)\s*\b(?P<name>\w+)\s*\[\s*\]\s*;"
PARTS = re.compile(
    rf"{COMMENT}|{STRING}|{INCLUDE}|(?P<c_kernel>{C_KERNEL})|(?P<dynamic_shared>{DYNAMIC_SHARED})", re.DOTALL
)

# What CuPy's compiler takes and a CPU has no use for.
WITHOUT_MEANING = re.compile(
    r"-{1,2}(use_fast_math|fmad|ftz|prec-div|prec-sqrt|maxrregcount|lineinfo|device-debug|generate-line-info|arch|"
    r"gpu-architecture|extra-device-vectorization|ptxas-options|Xptxas|device-as-default-execution-space)(=.*)?"
)

STANDARDS = ("c++03", "c++11", "c++14", "c++17", "c++20")  # those of CuPy's compiler; 17 is the least of the emulator
MACRO = re.compile(r"-D\s*[^\W\d]\w*(\([^)\n]*\))?(=[^\n]*)?")

# The preprocessor is asked which kernels and includes there are, so that those that an #if leaves out are left out here
# too, and kernels that a macro writes are found. It marks them with these words.
MARKS = ("-D__global__=CUDA_CPU_GLOBAL", "-D__launch_bounds__(...)=CUDA_CPU_BOUNDS[__VA_ARGS__]END", "-DCUDA_CPU=1")
INCLUDED = re.compile(r'CUDA_CPU_INCLUDE "(?P<header>[^"\n]*)" (?P<line>\d+) (?P<file>"(?:\\.|[^"\\\n])*")')
BOUNDS = re.compile(r"CUDA_CPU_BOUNDS\[(.*?)\]\s*END", re.DOTALL)
KERNEL = re.compile(rf"(?P<words>(?:(?:CUDA_CPU_GLOBAL|void|{BOUNDS.pattern})\s+)+)(?P<name>\w+)\s*\(", re.DOTALL)
C_LINKAGE = re.compile(r'extern\s+"C"\s*(?:$|\{)')


class Source:
    """A source and CuPy's compile options for it, of which macros and the C++ standard concern a CPU.

    EmulatorError for an option that CuPy's compiler would not know, or that names other files.
    """

    def __init__(self, code: str, options: Sequence[str]) -> None:
        if not isinstance(code, str):
            raise TypeError(f"code={code!r}: a source is a string of CUDA C++")
        if not isinstance(options, (tuple, list)) or not all(isinstance(option, str) for option in options):
            raise TypeError(f'options={options!r}: a tuple of options, such as ("-DHEAD_DIM=64",)')
        self._code = code
        self.macros: list[str] = []
        self.standard = "-std=c++17"
        for option in options:
            if MACRO.fullmatch(option):
                self.macros.append(option)
            elif option.lstrip("-").startswith("std="):
                self.standard = _standard(option)
            elif not WITHOUT_MEANING.fullmatch(option):
                raise EmulatorError(
                    f"option {option!r}: the emulator takes -Dname=value, -Dname and -std=c++17, and passes over those "
                    "that are for a GPU alone; a source is one string, without files of its own to include"
                )

    @property
    def code(self) -> str:
        """The source as it is compiled. Lines stay what they are, for the compiler's messages."""
        return PARTS.sub(_as_the_cpu_has_it, self._code)

    @property
    def options(self) -> list[str]:
        return [*self.macros, self.standard]

    def wrapper(self) -> str:
        """The file that is compiled. The source is in a nameless namespace: no name of its meets one of C's library.

        The system's headers cannot be there, and are included before.
        """
        text = preprocessed(PARTS.sub(_with_marks, self._code), [self.standard, *MARKS, *self.macros])
        includes = "".join(
            f"#line {found['line']} {found['file']}\n#include <{found['header']}>\n"
            for found in INCLUDED.finditer(text)
        )
        kernels = "".join(
            f'    cuda_cpu::describe<{name}>("{name}", {bounds}),\n' for name, bounds in _kernels(text).items()
        )
        return f"""#include "parameters.h"
{includes}
#line 1 "wrapper.cpp"
#include "cuda_cpu.h"
{self._definitions()}
namespace {{
#include "kernel.cu"

constexpr cuda_cpu::Kernel cuda_cpu_kernels[] = {{
{kernels}    cuda_cpu::Kernel()
}};
}}
#include "exports.h"
"""

    def _definitions(self) -> str:
        """The macros as lines of a source: defined after the system's headers, which a short name would break."""
        lines = []
        for macro in self.macros:
            name, equals, value = macro.removeprefix("-D").partition("=")
            lines.append(f"#define {name} {value if equals else 1}\n")
        return "".join(lines)


def _standard(option: str) -> str:
    """The g++ option for it: C++17, in which the emulator is written, instead of an older one."""
    name = option.lstrip("-").removeprefix("std=")
    if name not in STANDARDS:
        raise EmulatorError(f"option {option!r}: the standards of C++ are {', '.join(STANDARDS)}")
    return f"-std={max(name, 'c++17', key=STANDARDS.index)}"


def _kernels(preprocessed_text: str) -> dict[str, str]:
    """The kernels, in order: their names, and what is in their __launch_bounds__ or else 1024."""
    kernels = {}
    for found in KERNEL.finditer(preprocessed_text):
        words = found["words"]
        is_kernel = "CUDA_CPU_GLOBAL" in words and "void" in words
        if is_kernel and C_LINKAGE.search(preprocessed_text[: found.start()]):
            bounds = BOUNDS.search(words)
            kernels[found["name"]] = bounds[1] if bounds else "1024"
    return kernels


def _as_the_cpu_has_it(part: re.Match[str]) -> str:
    if part["header"] is not None:  # the wrapper includes it
        return f"/* {part[0]} */"
    if part["c_kernel"]:  # in the nameless namespace, and not as C's, a kernel may be called `remove`
        return part[0].replace('"C"', '/*"C"*/')
    if part["dynamic_shared"]:
        return f"DYNAMIC_SHARED({part['type']}, {part['name']});" + "\n" * part[0].count("\n")
    return part[0]


def _with_marks(part: re.Match[str]) -> str:
    return part[0] if part["header"] is None else f'CUDA_CPU_INCLUDE "{part["header"]}" __LINE__ __FILE__'
