"""Comparison and logic, element by element: booleans, or bits, without a gradient."""

from __future__ import annotations

from typing import Any

from minigrad.operation import namespace, op


@op
def equal(x: Any, y: Any) -> Any:
    """x == y."""
    return x == y, None


@op
def not_equal(x: Any, y: Any) -> Any:
    """x != y."""
    return x != y, None


@op
def less(x: Any, y: Any) -> Any:
    """x < y."""
    return x < y, None


@op
def less_equal(x: Any, y: Any) -> Any:
    """x <= y."""
    return x <= y, None


@op
def greater(x: Any, y: Any) -> Any:
    """x > y."""
    return x > y, None


@op
def greater_equal(x: Any, y: Any) -> Any:
    """x >= y."""
    return x >= y, None


@op
def bitwise_and(x: Any, y: Any) -> Any:
    """x & y: "and" of booleans, bit by bit of integers."""
    return x & y, None


@op
def bitwise_or(x: Any, y: Any) -> Any:
    """x | y: "or" of booleans, bit by bit of integers."""
    return x | y, None


@op
def bitwise_xor(x: Any, y: Any) -> Any:
    """x ^ y: "either, not both" of booleans, bit by bit of integers."""
    return x ^ y, None


@op
def invert(x: Any) -> Any:
    """~x: the bits of integers, "not" of booleans."""
    return ~x, None


@op
def logical_and(x: Any, y: Any) -> Any:
    """Whether neither x nor y is 0."""
    return namespace(x, y).logical_and(x, y), None


@op
def logical_or(x: Any, y: Any) -> Any:
    """Whether x or y is not 0."""
    return namespace(x, y).logical_or(x, y), None


@op
def logical_xor(x: Any, y: Any) -> Any:
    """Whether one of x and y is 0 and the other is not."""
    return namespace(x, y).logical_xor(x, y), None


@op
def logical_not(x: Any) -> Any:
    """Whether x is 0."""
    return namespace(x).logical_not(x), None


@op
def isnan(x: Any) -> Any:
    """Whether x is NaN."""
    return namespace(x).isnan(x), None


@op
def isinf(x: Any) -> Any:
    """Whether x is ∞ or -∞."""
    return namespace(x).isinf(x), None


@op
def isfinite(x: Any) -> Any:
    """Whether x is neither NaN nor infinite."""
    return namespace(x).isfinite(x), None
