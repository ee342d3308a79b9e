"""Heads: the features of each vector in H parts, split off for attention, and joined again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad import op
from minigrad.backend import array_module
from minigrad.bfloat import takes_bfloat16


@takes_bfloat16
@op(linear=True)
def split_heads(x: Any, *, heads: int, parts: int) -> Any:
    """Vectors (B, N, parts D) to so many (B, H, N, d), without a copy: of each vector's parts, each head's features."""
    return views_of_heads(x, heads=heads, parts=parts), lambda gradients: join_heads(list(gradients))


def views_of_heads(x: Any, *, heads: int, parts: int = 1) -> tuple[Any, ...]:
    """`split_heads` of an array: views of it, if it is contiguous."""
    batch, length, width = x.shape
    split = x.reshape(batch, length, parts, heads, width // (parts * heads))
    return tuple([split[:, :, part].swapaxes(1, 2) for part in range(parts)])


@takes_bfloat16
@op(linear=True)
def join_heads(*xs: Any) -> Any:
    """The opposite of `split_heads`: one or more (B, H, N, d) to (B, N, parts D)."""
    batch, heads, length, features = xs[0].shape
    turned = [x.swapaxes(1, 2) for x in xs]  # often in this order in memory already
    joined = turned[0] if len(xs) == 1 else array_module(xs[0]).stack(turned, axis=2)
    joined = joined.reshape(batch, length, len(xs) * heads * features)
    return joined, lambda g: split_heads(g, heads=heads, parts=len(xs))


def heads_of_projections(query: Any, key: Any, value: Any, *, heads: int, split: Callable[..., Any]) -> tuple[Any, ...]:
    """The heads (B, H, N, d) of query, key and value, by `split_heads` or `views_of_heads`.

    The projections are (B, N_q, D), (B, N_k, D) and (B, N_k, D). If `value` is None, each key is followed by its value,
    (B, N_k, 2 D); if `key` is None too, each query by both, (B, N, 3 D).
    """
    if key is None:
        return split(query, heads=heads, parts=3)
    if value is None:
        return *split(query, heads=heads, parts=1), *split(key, heads=heads, parts=2)
    return tuple([split(x, heads=heads, parts=1)[0] for x in (query, key, value)])
