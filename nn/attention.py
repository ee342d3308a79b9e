"""MultiHeadAttention: the projections around attention. The masks that models make for it are in `nn.masks`."""

from __future__ import annotations

from typing import Any

import nn.functional as F
from minigrad import zeros
from nn import init
from nn.common import probability
from nn.heads import heads_of_projections, join_heads, split_heads
from nn.linear import Linear
from nn.module import Module, Parameter
from nn.projections import packed_projections
from nn.scaled_dot_product import multi_head_attention


class MultiHeadAttention(Module):
    """Concat(head_1 ... head_H) W^O, where each head attends with projections of its own.

    Vaswani et al. 2017, section 3.2.2. Parameters, their layouts and their starting values are those of
    `torch.nn.MultiheadAttention`; the batch always comes first.

    Args:
        d_model: the length D of a query and of an output; heads have D / H features each.
        num_heads: H.
        dropout: probability that a weight is dropped, in training.
        bias: False for projections without bias.
        kdim, vdim: the lengths of a key and a value before projection; D by default.

    Parameters:
        in_proj_weight: (3 D, D), the projections of query, key and value below one another; if kdim or vdim is not D,
            three instead: q_proj_weight (D, D), k_proj_weight (D, kdim), v_proj_weight (D, vdim).
        in_proj_bias: (3 D,), or None.
        out_proj: a Linear, W^O.

    Raises ValueError for a d_model that is no multiple of num_heads, or a dropout outside 0 ... 1.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model < 1 or d_model % num_heads != 0:
            raise ValueError(
                f"MultiHeadAttention: d_model must be a multiple of num_heads, got {d_model} and {num_heads}"
            )
        self.d_model, self.num_heads = d_model, num_heads
        self.dropout = probability("MultiHeadAttention: dropout", dropout)
        self.kdim = d_model if kdim is None else kdim
        self.vdim = d_model if vdim is None else vdim
        if self.kdim == self.vdim == d_model:
            self.in_proj_weight = Parameter(zeros(3 * d_model, d_model))
        else:
            self.q_proj_weight = Parameter(zeros(d_model, d_model))
            self.k_proj_weight = Parameter(zeros(d_model, self.kdim))
            self.v_proj_weight = Parameter(zeros(d_model, self.vdim))
        self.in_proj_bias = Parameter(zeros(3 * d_model)) if bias else None
        self.out_proj = Linear(d_model, d_model, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights afresh; biases are 0."""
        for weight in self._weights():
            init.xavier_uniform_(weight)
        self.out_proj.reset_parameters()
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)

    def _weights(self) -> tuple[Parameter, ...]:
        """The one packed weight, or the three."""
        if self.kdim == self.vdim == self.d_model:
            return (self.in_proj_weight,)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> Any:
        """Each query's mixture of the values.

        Args:
            query, key, value: (B, N_q, D), (B, N_k, kdim), (B, N_k, vdim). The same object for all three, or for key
                and value, is projected at once.
            mask: as `attn_mask` of `F.scaled_dot_product_attention`: True = may be attended to; broadcasts to
                (B, H, N_q, N_k).
            is_causal: query i attends to keys up to i only.
            need_weights: also return the weights of each head, before dropout (PyTorch's, in training, are after it).

        Returns (B, N_q, D), or this and the weights (B, H, N_q, N_k). Raises ValueError that names shapes which do not
        fit.
        """
        self._check_shapes(query, key, value)
        projections = self._project(query, key, value)
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            return self.out_proj(multi_head_attention(*projections, self.num_heads, mask, dropout, is_causal))
        q, k, v = heads_of_projections(*projections, heads=self.num_heads, split=split_heads)
        output, weights = F.attention_with_weights(q, k, v, mask, dropout, is_causal)
        return self.out_proj(join_heads([output])), weights

    def _check_shapes(self, query: Any, key: Any, value: Any) -> None:
        shapes = query.shape, key.shape, value.shape
        widths = self.d_model, self.kdim, self.vdim
        fit = all(len(shape) == 3 and shape[-1] == width for shape, width in zip(shapes, widths, strict=True))
        if not fit or not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
            raise ValueError(
                f"MultiHeadAttention: query {shapes[0]}, key {shapes[1]} and value {shapes[2]} do not fit; "
                f"they are (B, N_q, {widths[0]}), (B, N_k, {widths[1]}) and (B, N_k, {widths[2]})"
            )

    def _project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """The projections, in as few products as there are different inputs: see `nn.heads.heads_of_projections`."""
        weight, *others = self._weights()
        bias = self.in_proj_bias
        if not others and query is key and key is value:
            return F.linear(query, weight, bias), None, None
        if not others and key is value:
            return *packed_projections(query, key, weight, bias), None
        weights = (weight, *others) if others else weight.split(self.d_model)
        biases = (None, None, None) if bias is None else bias.split(self.d_model)
        q, k, v = [F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
        return q, k, v

    def extra_repr(self) -> str:
        bias = self.in_proj_bias is not None
        return f"{self.d_model}, num_heads={self.num_heads}, dropout={self.dropout}, bias={bias}"
