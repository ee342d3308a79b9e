"""Reading a kernel's source: its options, its kernels, and the file around it that is compiled for the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernels.emulator.build import EmulatorError, preprocessed

# `extern __shared__ float tile[];` declares memory of a size given at launch: no macro can say that to a C++ compiler.
ALIGNMENT = r"(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?"
DYNAMIC_SHARED = re.compile(rf"extern\s+__shared__\s+{ALIGNMENT}(?P<type>[\w:\s]+?)\s*\b(?P<name>\w+)\s*\[\s*\]\s*;")
SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>\n]*>", re.MULTILINE)

# What CuPy's compiler takes and a CPU has no use for.
WITHOUT_MEANING = re.compile(
    r"-{1,2}(use_fast_math|fmad|ftz|prec-div|prec-sqrt|maxrregcount|lineinfo|device-debug|generate-line-info|arch|"
    r"gpu-architecture|extra-device-vectorization|ptxas-options|Xptxas|device-as-default-execution-space)(=.*)?"
)

# The preprocessor is asked which kernels there are, so that those that an #if leaves out are left out here too, and
# those that a macro writes are found. It marks them with these words.
MARKS = ("-D__global__=CUDA_CPU_GLOBAL", "-D__launch_bounds__(...)=CUDA_CPU_BOUNDS[__VA_ARGS__]", "-DCUDA_CPU=1")
BOUNDS = r"(?:CUDA_CPU_BOUNDS\[(?P<{}>[^\]]*)\]\s*)?"
KERNEL = re.compile(
    rf"CUDA_CPU_GLOBAL\s+{BOUNDS.format('before')}void\s+{BOUNDS.format('after')}(?P<name>\w+)\s*\(",
)
C_LINKAGE = re.compile(r'extern\s+"C"\s*(?:$|\{)')
C_KERNEL = re.compile(r'extern\s+"C"(?=\s+__global__)')


class Source:
    """A source and CuPy's compile options for it, of which macros and the C++ standard concern a CPU.

    EmulatorError for an option that CuPy's compiler would not know, or that names other files.
    """

    def __init__(self, code: str, options: Sequence[str]) -> None:
        if isinstance(options, str):
            raise TypeError(f'options={options!r}: a tuple of options, such as ("-DHEAD_DIM=64",)')
        self._code = code
        self.macros: list[str] = []
        self.standard = "-std=c++17"
        for option in options:
            if option.startswith("-D"):
                self.macros.append(option)
            elif option.lstrip("-").startswith("std="):
                self.standard = "-" + option.lstrip("-")
            elif not WITHOUT_MEANING.fullmatch(option):
                raise EmulatorError(
                    f"option {option!r}: the emulator takes -Dname=value and -std=c++17, and passes over those that "
                    "are for a GPU alone; a source is one string, without files of its own to include"
                )

    @property
    def code(self) -> str:
        """The source as it is compiled. Lines and columns stay what they are, for the compiler's messages."""
        # In the nameless namespace, and not as C's, a kernel may be called `remove`.
        code = C_KERNEL.sub(lambda found: '/*"C"*/'.ljust(len(found[0])), self._code)
        return DYNAMIC_SHARED.sub(_as_cuda_cpu_has_it, code)

    @property
    def options(self) -> list[str]:
        return [*self.macros, self.standard]

    def wrapper(self) -> str:
        """The file that is compiled. The source is in a nameless namespace: no name of its meets one of C's library."""
        includes = "".join(include + "\n" for include in SYSTEM_INCLUDE.findall(self._code))
        kernels = "".join(
            f'    cuda_cpu::describe<{name}>("{name}", {bounds}),\n' for name, bounds in self._kernels().items()
        )
        return f"""#include "parameters.h"
{includes}
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

    def _kernels(self) -> dict[str, str]:
        """The kernels, in order: their names, and what is in their __launch_bounds__ or else 1024."""
        text = preprocessed(SYSTEM_INCLUDE.sub("", self._code), [self.standard, *MARKS, *self.macros])
        return {
            kernel["name"]: kernel["before"] or kernel["after"] or "1024"
            for kernel in KERNEL.finditer(text)
            if C_LINKAGE.search(text[: kernel.start()])
        }

    def _definitions(self) -> str:
        """The macros as lines of a source: defined after the system's headers, which a short name would break."""
        lines = []
        for macro in self.macros:
            name, equals, value = macro.removeprefix("-D").partition("=")
            lines.append(f"#define {name} {value if equals else 1}\n")
        return "".join(lines)


def _as_cuda_cpu_has_it(declaration: re.Match[str]) -> str:
    lines = "\n" * declaration[0].count("\n")
    return f"DYNAMIC_SHARED({declaration['type']}, {declaration['name']});{lines}"
