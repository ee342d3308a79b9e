"""Which tiles a kernel works with: one table from (dtype, head dimension) to their sizes.

A block owns rows of one side and streams tiles of the other side through shared memory. Larger tiles read each number
from memory less often, and need more registers and shared memory: every row was compiled for sm_80 and sm_90 without a
spilled register, and a test holds that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ON_TENSOR_CORES = "float32 on tensor cores"  # beside the arrays' dtypes another kind of kernels: attention_tf32.cu
HEAD_DIMS = (16, 32, 64, 128, 256)  # what kernels are built for; d is filled up with zeros to the next of them


@dataclass(frozen=True)
class Tiles:
    """How one build of a source divides its work."""

    own: int  # rows that a block owns
    stream: int  # rows of a streamed tile
    threads: int  # in a block
    shared: int  # bytes of shared memory of a block
    options: tuple[str, ...]  # the same, as the source reads it
    parts: int = 1  # blocks of attention_dkdv that share the work of one: of 2, one makes d_key, the other d_value
    plain: bool = False  # only for calls without bias and dropout, which leave it more registers


def choose_tiles(kind: str, width: int, *, backward: bool, plain: bool, shared_limit: int) -> Tiles:
    """The largest tiles for arrays of head dimension `width` that fit into `shared_limit` bytes.

    kind: the arrays' dtype, or ON_TENSOR_CORES.
    plain: whether the call has neither bias nor dropout.

    Raises ValueError if no tiles fit.
    """
    head_dim = next(size for size in HEAD_DIMS if size >= width)
    row = ("16 bits" if kind in ("float16", "bfloat16") else kind, head_dim)
    choices = _BACKWARD[row] if backward else _FORWARD[row]
    fitting = [tiles for tiles in choices if tiles.shared <= shared_limit and (plain or not tiles.plain)]
    if not fitting:
        raise ValueError(
            f"attention kernels: head dimension {width} in {kind} needs {choices[-1].shared} bytes of shared memory, "
            f"this device has {shared_limit} for a block"
        )
    return fitting[0]


def _f32(
    head_dim: int, own: int, stream: int, threads: tuple[int, int] = (16, 16), *, backward: bool, min_blocks: int = 1
) -> Tiles:
    """Tiles of attention_f32.cu. In shared memory lie one owned tile and two streamed ones (backward: two and two) of
    rows padded by 4 floats, and the scores, padded by 8.
    """
    x, y = threads
    rows = (2 if backward else 1) * own + 2 * stream
    numbers = {
        "HEAD_DIM": head_dim,
        "OWN": own,
        "STREAM": stream,
        "THREADS_X": x,
        "THREADS_Y": y,
        "MIN_BLOCKS": min_blocks,
        "BACKWARD": int(backward),
    }
    return Tiles(
        own,
        stream,
        threads=x * y,
        shared=4 * (rows * (head_dim + 4) + own * (stream + 8)),
        options=tuple(f"-D{name}={number}" for name, number in numbers.items()),
    )


def _f32_forward(*sizes: Any, min_blocks: int = 2) -> Tiles:
    return _f32(*sizes, backward=False, min_blocks=min_blocks)


def _f32_backward(*sizes: Any, min_blocks: int = 1) -> Tiles:
    return _f32(*sizes, backward=True, min_blocks=min_blocks)


def _by_warps(
    head_dim: int,
    warps: int,
    row_tiles: int,
    stream: int,
    *,
    row_bytes: int,
    backward: bool = False,
    parts: int = 1,
    plain: bool = False,
    **more: int,
) -> Tiles:
    """Tiles of a source for tensor cores, whose warps own 16 rows for each row tile. In shared memory lie one owned
    tile (backward: two) and two pairs of streamed ones, backward with three floats for each of their rows.
    """
    own = 16 * row_tiles * warps
    rows = (2 if backward else 1) * own + 4 * stream
    numbers = {
        "HEAD_DIM": head_dim,
        "WARPS": warps,
        "ROW_TILES": row_tiles,
        "STREAM": stream,
        "PARTS": parts,
        "BACKWARD": int(backward),
        **more,
    }
    return Tiles(
        own,
        stream,
        threads=32 * warps,
        shared=row_bytes * rows + (24 * stream if backward else 0),
        options=tuple(f"-D{name}={number}" for name, number in numbers.items()),
        parts=parts,
        plain=plain,
    )


def _16(head_dim: int, *sizes: int, in_registers: bool = True, **more: Any) -> Tiles:
    """Tiles of attention_16.cu."""
    return _by_warps(head_dim, *sizes, row_bytes=2 * head_dim, IN_REGISTERS=int(in_registers), **more)


def _tf32(head_dim: int, *sizes: int, **more: Any) -> Tiles:
    """Tiles of attention_tf32.cu, which pads rows by 4 floats."""
    return _by_warps(head_dim, *sizes, row_bytes=4 * (head_dim + 4), **more)


# By dtype and head dimension, the best first. The others are for devices on which a block has 99 KiB of shared memory
# instead of 163 or 227.
_FORWARD: dict[tuple[str, int], list[Tiles]] = {
    ("float32", 16): [_f32_forward(16, 64, 64)],
    ("float32", 32): [_f32_forward(32, 64, 64)],
    ("float32", 64): [_f32_forward(64, 64, 64)],
    ("float32", 128): [_f32_forward(128, 64, 32)],
    ("float32", 256): [_f32_forward(256, 64, 32, min_blocks=1), _f32_forward(256, 16, 16, (8, 8))],
    (ON_TENSOR_CORES, 16): [_tf32(16, 4, 2, 32)],
    (ON_TENSOR_CORES, 32): [_tf32(32, 4, 2, 32)],
    (ON_TENSOR_CORES, 64): [_tf32(64, 4, 2, 32)],
    (ON_TENSOR_CORES, 128): [_tf32(128, 8, 1, 32), _tf32(128, 8, 1, 16)],
    (ON_TENSOR_CORES, 256): [_tf32(256, 4, 1, 16), _tf32(256, 2, 1, 16)],
    ("16 bits", 16): [_16(16, 4, 2, 64, plain=True), _16(16, 8, 1, 64)],
    ("16 bits", 32): [_16(32, 4, 2, 64, plain=True), _16(32, 8, 1, 64)],
    ("16 bits", 64): [_16(64, 4, 2, 64, plain=True), _16(64, 8, 1, 64)],
    ("16 bits", 128): [_16(128, 4, 2, 32, in_registers=False, plain=True), _16(128, 8, 1, 32, in_registers=False)],
    ("16 bits", 256): [_16(256, 8, 1, 32, in_registers=False), _16(256, 4, 1, 32, in_registers=False)],
}
_BACKWARD: dict[tuple[str, int], list[Tiles]] = {
    ("float32", 16): [_f32_backward(16, 64, 64, min_blocks=2)],
    ("float32", 32): [_f32_backward(32, 64, 64, min_blocks=2)],
    ("float32", 64): [_f32_backward(64, 64, 64, min_blocks=2)],
    ("float32", 128): [_f32_backward(128, 64, 32), _f32_backward(128, 32, 32)],
    ("float32", 256): [_f32_backward(256, 32, 32), _f32_backward(256, 16, 16, (8, 8))],
    (ON_TENSOR_CORES, 16): [_tf32(16, 4, 1, 32, backward=True)],
    (ON_TENSOR_CORES, 32): [_tf32(32, 4, 1, 32, backward=True)],
    (ON_TENSOR_CORES, 64): [_tf32(64, 4, 1, 32, backward=True)],
    (ON_TENSOR_CORES, 128): [_tf32(128, 4, 1, 16, backward=True), _tf32(128, 2, 1, 16, backward=True)],
    (ON_TENSOR_CORES, 256): [_tf32(256, warps, 1, 16, backward=True, parts=2) for warps in (4, 2, 1)],
    ("16 bits", 16): [_16(16, 4, 1, 64, backward=True)],
    ("16 bits", 32): [_16(32, 4, 1, 64, backward=True, plain=True), _16(32, 4, 1, 32, backward=True)],
    ("16 bits", 64): [_16(64, 8, 1, 64, backward=True)],
    ("16 bits", 128): [_16(128, 8, 1, 32, in_registers=False, backward=True)],
    ("16 bits", 256): [_16(256, 4, 1, 16, in_registers=False, backward=True, parts=2)],
}
