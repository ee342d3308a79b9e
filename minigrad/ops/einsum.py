"""einsum: sums of products of axes that are named by letters (Einstein's notation), as chains of matrix products."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from minigrad.autocast import in_16_bits
from minigrad.backend import is_array
from minigrad.bfloat import takes_bfloat16
from minigrad.operation import op
from minigrad.ops.linalg import diagonal, times
from minigrad.ops.reduce import sum
from minigrad.ops.shape import reshape, squeeze, transpose
from minigrad.tensor import Tensor

Label = str | int  # an axis: its letter, or for one under "..." its place counted from the right: -1, -2 ...
Labels = tuple[Label, ...]


def einsum(subscripts: str, *operands: Any) -> Any:
    """Σ of the operands' product over every letter that the output lacks: "ij,jk->ik" is a matrix product.

    A letter names an axis, "..." the axes that have no letter, which broadcast; a letter twice in one operand takes the
    diagonal. Axes of length 1 broadcast. Without "->" the output is "..." and, in alphabetical order, the letters that
    occur once. Operands are multiplied from left to right, what no later one needs is summed at once.

    Raises ValueError for a format that cannot be read, and for lengths that do not fit: it names the letter.
    """
    if not isinstance(subscripts, str):
        raise TypeError(f"einsum: a format such as 'ij,jk->ik' comes first, got {type(subscripts).__name__}")
    for place, x in enumerate(operands):
        if not (isinstance(x, Tensor) or is_array(x)):
            raise TypeError(f"einsum: operand {place} must be a tensor or an array, got {type(x).__name__}")
    inputs, output = _read(subscripts, tuple(x.ndim for x in operands))
    lengths = _lengths(inputs, operands)
    terms = [_with_each_label_once(x, labels, lengths) for x, labels in zip(operands, inputs, strict=True)]
    x, of_x = terms[0]
    for place, (y, of_y) in enumerate(terms[1:], 2):
        needed = {*output, *(label for _, labels in terms[place:] for label in labels)}
        x, of_x = _summed(x, of_x, needed.union(of_y))
        y, of_y = _summed(y, of_y, needed.union(of_x))
        either = dict.fromkeys(of_x + of_y)
        out = tuple(label for label in either if label in needed) if place < len(terms) else output
        x, of_x = contract(x, y, of_x=of_x, of_y=of_y, out=out), out
    x, of_x = _summed(x, of_x, set(output))
    return _arranged(x, of_x, output)


@in_16_bits
@takes_bfloat16
@op
def contract(x: Any, y: Any, *, of_x: Labels, of_y: Labels, out: Labels) -> Any:
    """Σ x y over the labels that `out` lacks, each label being on two or three of x, y and the value.

    ∂x = Σ g y over the labels that x lacks, ∂y = Σ g x over those that y lacks: contractions again.
    """
    return _product(x, of_x, y, of_y, out), (
        lambda g: contract(g, y, of_x=out, of_y=of_y, out=of_x),
        lambda g: contract(g, x, of_x=out, of_y=of_x, out=of_y),
    )


def _product(x: Any, of_x: Labels, y: Any, of_y: Labels, out: Labels) -> Any:
    """What `contract` computes: products of matrices, or of elements where nothing is summed."""
    length = dict(zip(of_x + of_y, x.shape + y.shape, strict=True))
    summed = tuple(label for label in of_x if label not in out)
    if not summed:
        return _spread(x, of_x, out) * _spread(y, of_y, out)
    batch = tuple(label for label in of_x if label in of_y and label in out)
    rows = tuple(label for label in of_x if label not in of_y)
    columns = tuple(label for label in of_y if label not in of_x)

    def joined(*groups: Labels) -> tuple[int, ...]:
        return tuple(math.prod(length[label] for label in group) for group in groups if group or batch)

    x = reshape(_arranged(x, of_x, batch + rows + summed), joined(batch, rows, summed))
    y = reshape(_arranged(y, of_y, batch + summed + columns), joined(batch, summed, columns))
    value = reshape(times(x, y), tuple(length[label] for label in batch + rows + columns))
    return _arranged(value, batch + rows + columns, out)


def _spread(x: Any, labels: Labels, out: Labels) -> Any:
    """x with its axes in the order of `out`, and of length 1 where it has none, so that it broadcasts."""
    x = _arranged(x, labels, tuple(label for label in out if label in labels))
    lengths = iter(x.shape)
    return reshape(x, tuple(next(lengths) if label in labels else 1 for label in out))


def _arranged(x: Any, labels: Labels, order: Labels) -> Any:
    """x with its axes in another order."""
    return x if labels == order else transpose(x, tuple(labels.index(label) for label in order))


def _summed(x: Any, labels: Labels, needed: set[Label]) -> tuple[Any, Labels]:
    """x summed over the labels that are not needed, and the others."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    return sum(x, axis=axes) if axes else x, tuple(label for label in labels if label in needed)


def _with_each_label_once(x: Any, labels: Labels, lengths: dict[Label, int]) -> tuple[Any, Labels]:
    """x without axes that broadcast, and with the diagonals of repeated labels: and the labels that it has then."""
    stretched = tuple(axis for axis, label in enumerate(labels) if x.shape[axis] != lengths[label])
    if stretched:
        x, labels = squeeze(x, stretched), tuple(label for a, label in enumerate(labels) if a not in stretched)
    while len(set(labels)) < len(labels):
        label = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        x = diagonal(x, axis1=first, axis2=second)
        labels = (*labels[:first], *labels[first + 1 : second], *labels[second + 1 :], label)
    return x, labels


# ---- reading the format ----------------------------------------------------------------------------------------------


@functools.lru_cache
def _read(subscripts: str, ndims: tuple[int, ...]) -> tuple[tuple[Labels, ...], Labels]:
    """The labels of each operand, of which the numbers of dimensions are given, and of the output."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ndims):
        raise ValueError(f"einsum: {subscripts!r} is for {len(terms)} operands, got {len(ndims)}")
    inputs = tuple(_labels(subscripts, term, ndim) for term, ndim in zip(terms, ndims, strict=True))
    every = [label for labels in inputs for label in labels]
    under_dots = sorted({label for label in every if isinstance(label, int)})
    if arrow:
        output = _labels(subscripts, right, len(right.replace("...", "")) + len(under_dots) * ("..." in right))
    else:
        output = (*under_dots, *sorted(label for label in every if isinstance(label, str) and every.count(label) == 1))
    for label in output:
        if label not in every:
            raise ValueError(f"einsum: {subscripts!r} has {label!r} in the output, but in no operand")
        if output.count(label) > 1:
            raise ValueError(f"einsum: {subscripts!r} has {label!r} twice in the output")
    return inputs, output


def _labels(subscripts: str, term: str, ndim: int) -> Labels:
    """The labels of `ndim` axes that a part of the format names."""
    head, dots, tail = term.partition("...")
    free = ndim - len(head) - len(tail)
    for letter in head + tail:
        if not (letter.isascii() and letter.isalpha()):
            raise ValueError(
                f"einsum: {subscripts!r} has {letter!r} in {term!r}; it takes letters, commas, '->' and "
                "'...' once in each operand and the output"
            )
    if free < 0 or (free and not dots):
        raise ValueError(
            f"einsum: {subscripts!r} has {term!r} for a tensor of {ndim} dimensions; "
            "name each with a letter, or those without with '...'"
        )
    return (*head, *range(-free, 0), *tail)


def _lengths(inputs: Sequence[Labels], operands: Sequence[Any]) -> dict[Label, int]:
    """The length of each label. ValueError for two, but 1 broadcasts from one operand to another."""
    lengths: dict[Label, int] = {}
    for labels, x in zip(inputs, operands, strict=True):
        own: dict[Label, int] = {}
        for label, n in zip(labels, x.shape, strict=True):
            if own.setdefault(label, n) != n:
                raise ValueError(f"einsum: index {label!r} names axes of lengths {own[label]} and {n} of one operand")
        for label, n in own.items():
            known = lengths.setdefault(label, n)
            if 1 not in (known, n) and known != n:
                name = repr(label) if isinstance(label, str) else f"{label} of '...'"
                raise ValueError(f"einsum: index {name} has the lengths {known} and {n}; they must be equal, or one 1")
            lengths[label] = n if known == 1 else known
    return lengths
