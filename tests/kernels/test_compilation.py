"""The attention kernels as GPUs get them: no register is spilled, products run on tensor cores where they should, and a
multiprocessor has room for enough warps. By nvcc, and by NVRTC as CuPy has it do it.

MINIGRAD_FULL=1 compiles every row of the tile table with every option and compiler; else d = 64 and 128 without
options, and d = 64 with most.
"""

import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from kernels import launch
from kernels.modules import source_text
from kernels.tiles import HEAD_DIMS, ON_TENSOR_CORES, Tiles, choose_tiles
from tests.kernels.compilers import COMPILERS, Binary, assert_no_spills, compiled
from tests.kernels.support import FULL

SHARED_LIMITS = (227 << 10, 163 << 10, 99 << 10)  # bytes that a block may have: sm_90, sm_80, sm_86
MASKS = [(f"-DBIAS={bias}", f"-DDROPOUT={dropout}") for bias, dropout in product((0, 1, 2), (0, 1))]
VARIANTS = {
    "float32": [("-DALIGNED=1",), ("-DALIGNED=0",)],
    "float16": [("-DUSE_BF16=0",)],
    "bfloat16": [("-DUSE_BF16=1",)],
    ON_TENSOR_CORES: [()],
}
TENSOR_CORES = {
    "float16": "HMMA.16816.F32 ",
    "bfloat16": "HMMA.16816.F32.BF16 ",
    ON_TENSOR_CORES: "HMMA.1688.F32.TF32 ",
}


@dataclass(frozen=True)
class Build:
    """What the launcher compiles for some call."""

    kind: str  # the dtype, or ON_TENSOR_CORES
    tiles: Tiles
    options: tuple[str, ...]
    is_sampled: bool  # compiled without MINIGRAD_FULL too

    def __str__(self) -> str:
        return " ".join([self.kind, *(option.removeprefix("-D") for option in (*self.tiles.options, *self.options))])

    def compiled(self, compiler: str, architecture: str) -> Binary:
        code = source_text(launch.SOURCES[self.kind])
        return compiled(compiler, architecture, code, (*self.tiles.options, *self.options))

    @property
    def kernels(self) -> list[str]:
        if "-DBACKWARD=0" in self.tiles.options:
            return ["attention_forward"]
        has_bias_gradient = self.kind == "float32" and "-DBIAS=2" in self.options
        return ["attention_delta", "attention_dq", "attention_dkdv", *["attention_dbias"] * has_bias_gradient]


def _builds():
    """Each once, by what the launcher asks for: a kind, head dimension, options, a GPU."""
    builds = {}
    for kind, limit, width, backward, mask in product(VARIANTS, SHARED_LIMITS, HEAD_DIMS, (False, True), MASKS):
        for i, variant in enumerate(VARIANTS[kind]):
            tiles = choose_tiles(kind, width, backward=backward, plain=mask == MASKS[0], shared_limit=limit)
            is_common = (width in (64, 128) and mask == MASKS[0]) or (width == 64 and mask == MASKS[-1])
            build = Build(kind, tiles, (*mask, *variant), is_common and i == 0 and kind != "bfloat16")
            builds[str(build)] = build
    return [build for build in builds.values() if FULL or build.is_sampled]


BUILDS = _builds()
each_compiler = pytest.mark.parametrize("compiler, architecture", COMPILERS if FULL else COMPILERS[:3])


@each_compiler
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_no_register_is_spilled(build, compiler, architecture):
    assert_no_spills(build.compiled(compiler, architecture), *build.kernels)


@each_compiler
@pytest.mark.parametrize("build", [build for build in BUILDS if build.kind in TENSOR_CORES], ids=str)
def test_products_run_on_tensor_cores(build, compiler, architecture):
    machine_code = build.compiled(compiler, architecture).machine_code()
    assert machine_code.keys() == set(build.kernels)
    for name, code in machine_code.items():
        if name != "attention_delta":  # it has no product of matrices
            assert TENSOR_CORES[build.kind] in code and "LDSM" in code and "LDGSTS" in code, name


# Of a multiprocessor of an H100 or H200, for all its blocks. Registers are given to a thread in units of 8; a block
# takes 1 KiB of shared memory beside its own. (CUDA C++ programming guide, "technical specifications per compute
# capability".)
REGISTERS, SHARED = 65_536, 228 << 10


# With d = 256 one block's tiles may take it all; blocks of two warps are for GPUs with less shared memory.
ROOMY = [build for build in BUILDS if "-DHEAD_DIM=256" not in build.tiles.options and build.tiles.threads > 64]


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
@pytest.mark.parametrize("build", ROOMY, ids=str)
def test_there_is_room_for_two_warps_a_scheduler(build, compiler):
    """A multiprocessor has 4 schedulers; of two warps one computes while the other waits."""
    for kernel in build.compiled(compiler, "sm_90").kernels.values():
        registers = -(-kernel.registers // 8) * 8 * build.tiles.threads
        blocks = min(REGISTERS // registers, SHARED // (build.tiles.shared + 1024))
        assert blocks * build.tiles.threads // 32 >= 8, f"{kernel}: {blocks} blocks of {build.tiles.threads} threads"


@each_compiler
@pytest.mark.parametrize(
    "page, kernels", [("kernels", ["softmax", "softmax_backward"]), ("tiled-attention", ["attention"])]
)
def test_the_kernels_of_the_pages_compile_for_a_gpu(page, kernels, compiler, architecture):
    text = Path(__file__).parents[2].joinpath("docs", f"{page}.md").read_text(encoding="utf-8")
    (code,) = re.findall(r'^SOURCE = r"""(.*?)^"""', text, re.MULTILINE | re.DOTALL)
    assert_no_spills(compiled(compiler, architecture, code, ()), *kernels)
