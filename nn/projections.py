"""The projections of attention to a memory: the query's by one part of a weight, those of key and value by the rest."""

from __future__ import annotations

from typing import Any

from minigrad import op
from minigrad.autocast import in_16_bits
from minigrad.bfloat import takes_bfloat16
from minigrad.ops import concatenate
from minigrad.ops.linalg import affine, as_rows, product, sum_of_all_rows, times


@in_16_bits
@takes_bfloat16
@op(optional=["bias"])
def packed_projections(query: Any, memory: Any, weight: Any, bias: Any) -> Any:
    """Two `linear`: of query (B, N_q, D), to as many; and of memory (B, N_k, D), each key followed by its value.

    weight (3 D, D) and bias (3 D,), or None, are those of query, key and value below one another. Their gradients are
    written as a whole, where those of views would be added up in arrays of zeros. Raises ValueError that names shapes
    which do not fit.
    """
    width = query.shape[-1]
    shape_of_bias = None if bias is None else bias.shape
    if (memory.shape[-1], weight.shape) != (width, (3 * width, width)) or shape_of_bias not in (None, (3 * width,)):
        raise ValueError(
            f"packed_projections: memory {memory.shape}, weight {weight.shape} and bias {shape_of_bias} do not fit "
            f"queries of length {width}; they are (..., {width}), {(3 * width, width)} and {(3 * width,)}"
        )
    of_query, of_memory = weight[:width], weight[width:]
    bias_of_query, bias_of_memory = (None, None) if bias is None else (bias[:width], bias[width:])
    inputs = query, memory
    values = affine(query, of_query, bias_of_query), affine(memory, of_memory, bias_of_memory)
    return values, (
        lambda g: product(g[0], of_query),
        lambda g: product(g[1], of_memory),
        lambda g: concatenate([times(as_rows(d).T, as_rows(x)) for d, x in zip(g, inputs, strict=True)], axis=0),
        lambda g: concatenate([sum_of_all_rows(as_rows(d)) for d in g], axis=0),
    )
