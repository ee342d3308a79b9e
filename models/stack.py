"""The Transformer's encoder and decoder on vectors: layers, stacks of layers, and the two stacks together.

Parameter names and layouts are PyTorch's, so that a state_dict of torch.nn.Transformer, or of a part of one, loads as
it is. What stands around the stacks (token ids, positions, masks, logits) is in `models.transformer`.

Masks are those of `nn.functional.scaled_dot_product_attention`: True = may be attended to, and they broadcast to
(B, H, N_q, N_k). Every forward here returns its output or, with `need_weights=True`, (output, weights): a dict from the
path of each attention module, seen from the module that was called, to its heads' attention (B, H, N_q, N_k).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import nn
from minigrad import Tensor
from nn.feed_forward import check_activation, feed_forward
from nn.fused_sublayers import attention_sublayer, feed_forward_sublayer
from nn.module import is_plain

Weights = dict[str, Tensor]


def keep_weights(result: Any, weights: Weights, path: str) -> Tensor:
    """The output of the module at `path`; the attention weights that came with it, if any, are put into `weights`."""
    if isinstance(result, Tensor):
        return result
    output, found = result
    if isinstance(found, Tensor):  # the module is attention itself
        weights[path] = found
    else:
        weights.update({f"{path}.{inner}": attention for inner, attention in found.items()})
    return output


class _Layer(nn.Module):
    """What both kinds of layer have: self-attention before a feed-forward network, and residual connections."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        check_activation(type(self).__name__, activation)
        self.activation, self.norm_first = activation, norm_first
        self.linear1 = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.self_attn = nn.MultiHeadAttention(d_model, num_heads, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def _residual(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.LayerNorm) -> Tensor:
        """x and what `sublayer` makes of it, (B, N, D).

        Post-norm: norm(x + sublayer(x)), Vaswani et al. 2017, section 3.1. Pre-norm: x + sublayer(norm(x)), Xiong et
        al. 2020, "On layer normalization in the Transformer architecture".
        """
        if self.norm_first:
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))

    def _attend(
        self, path: str, x: Any, memory: Any, norm: nn.LayerNorm, mask: Any, is_causal: bool, weights: Weights | None
    ) -> Tensor:
        """Attention to the memory, or to x if that is None, as a sub-layer, (B, N_q, D).

        Args:
            path: of the attention module.
            weights: what its weights are put into, or None.
        """
        attention = getattr(self, path)
        if weights is None and self._may_be_fused():
            y = attention_sublayer(x, memory, norm, attention, mask, is_causal, self.norm_first)
            if y is not None:
                return y

        def sublayer(x: Tensor) -> Tensor:
            source = x if memory is None else memory
            result = attention(x, source, source, mask, is_causal, weights is not None)
            return result if weights is None else keep_weights(result, weights, path)

        return self._residual(x, sublayer, norm)

    def _feed_forward(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """The feed-forward network as a sub-layer, (B, N, D)."""
        if self._may_be_fused():
            y = feed_forward_sublayer(x, norm, self.linear1, self.linear2, self.activation, self.norm_first)
            if y is not None:
                return y

        def sublayer(x: Tensor) -> Tensor:
            return feed_forward(x, self.linear1, self.linear2, self.dropout, self.activation)

        return self._residual(x, sublayer, norm)

    def _may_be_fused(self) -> bool:
        """Whether its sub-layers are what is written here, not in a subclass, and nothing is dropped after them."""
        drops = not is_plain(self.dropout, nn.Dropout) or (self.dropout.training and self.dropout.p != 0)
        return type(self) in (EncoderLayer, DecoderLayer) and not drops

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, norm_first={self.norm_first}"


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward. Parameters are those of torch.nn.TransformerEncoderLayer.

    Args:
        d_model: length D of the vectors.
        num_heads: attention heads H; ValueError if D is not divisible by it.
        d_ff: length of the vectors within the feed-forward network.
        dropout: probability for attention weights, the network's inner vectors and the output of each sub-layer.
        activation: "relu", "gelu" (exact) or "gelu_tanh" (nearly that, and faster); ValueError for another.
        norm_first: False for post-norm, True for pre-norm.
    """

    def forward(self, x: Any, mask: Any = None, is_causal: bool = False, need_weights: bool = False) -> Any:
        """x (B, N, D) to the same shape.

        Args:
            mask: True = may be attended to (PyTorch's masks here say the opposite); broadcasts to (B, H, N, N). A
                floating mask is added to the scores: of zeros and ones write mask != 0.
            is_causal: place i attends to places up to i only, of those that `mask` allows: as in GPT.
            need_weights: return (output, weights), with the path "self_attn".
        """
        weights: Weights | None = {} if need_weights else None
        x = self._attend("self_attn", x, None, self.norm1, mask, is_causal, weights)
        x = self._feed_forward(x, self.norm2)
        return (x, weights) if need_weights else x


class DecoderLayer(_Layer):
    """Self-attention, attention to the encoder's output, then feed-forward; arguments as for EncoderLayer.

    Parameters are those of torch.nn.TransformerDecoderLayer.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
    ) -> None:
        super().__init__(d_model, num_heads, d_ff, dropout, activation, norm_first)
        self.multihead_attn = nn.MultiHeadAttention(d_model, num_heads, dropout)
        self.norm3 = nn.LayerNorm(d_model)

    def forward(
        self,
        x: Any,
        memory: Any,
        mask: Any = None,
        memory_mask: Any = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> Any:
        """x (B, N_t, D) and memory (B, N_s, D) to (B, N_t, D).

        `mask` and `is_causal` are for self-attention, `memory_mask` for attention to the memory. Weights have the paths
        "self_attn" and "multihead_attn".
        """
        weights: Weights | None = {} if need_weights else None
        x = self._attend("self_attn", x, None, self.norm1, mask, is_causal, weights)
        x = self._attend("multihead_attn", x, memory, self.norm2, memory_mask, False, weights)
        x = self._feed_forward(x, self.norm3)
        return (x, weights) if need_weights else x


class _Stack(nn.Module):
    """What both stacks have: layers, and the LayerNorm after the last one, if any."""

    def __init__(self, layers: Iterable[_Layer], norm: nn.LayerNorm | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm


class Encoder(_Stack):
    """Encoder layers one after another, and a LayerNorm after the last one if `norm` is given."""

    def forward(self, x: Any, mask: Any = None, is_causal: bool = False, need_weights: bool = False) -> Any:
        """x (B, N, D) to the same shape; masks are for every layer; weights have the paths "layers.0.self_attn" ..."""
        weights: Weights = {}
        for place, layer in enumerate(self.layers):
            x = keep_weights(layer(x, mask, is_causal, need_weights), weights, f"layers.{place}")
        x = x if self.norm is None else self.norm(x)
        return (x, weights) if need_weights else x


class Decoder(_Stack):
    """Decoder layers one after another, and a LayerNorm after the last one if `norm` is given."""

    def forward(
        self,
        x: Any,
        memory: Any,
        mask: Any = None,
        memory_mask: Any = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> Any:
        """x (B, N_t, D) and memory (B, N_s, D) to (B, N_t, D), with masks as in DecoderLayer, for every layer.

        Weights have the paths "layers.0.self_attn", "layers.0.multihead_attn" ...
        """
        weights: Weights = {}
        for place, layer in enumerate(self.layers):
            result = layer(x, memory, mask, memory_mask, is_causal, need_weights)
            x = keep_weights(result, weights, f"layers.{place}")
        x = x if self.norm is None else self.norm(x)
        return (x, weights) if need_weights else x


class EncoderDecoder(nn.Module):
    """An encoder and a decoder that reads its output: torch.nn.Transformer, parameter for parameter, on vectors.

    Args:
        d_model, num_heads, d_ff, dropout, activation, norm_first: as for EncoderLayer.
        num_encoder_layers, num_decoder_layers: how many layers, each drawn afresh.
        final_norm: whether each stack ends in a LayerNorm. By default with pre-norm, whose last sum nothing else
            normalizes, and not with post-norm, as in Vaswani et al. 2017. torch.nn.Transformer always has both: its
            state_dict needs True.

    Matrices are Xavier-uniform, as in PyTorch's and the paper's own code.
    """

    def __init__(
        self,
        d_model: int = 64,
        num_heads: int = 4,
        num_encoder_layers: int = 2,
        num_decoder_layers: int = 2,
        d_ff: int = 256,
        dropout: float = 0.1,
        activation: str = "relu",
        norm_first: bool = False,
        final_norm: bool | None = None,
    ) -> None:
        super().__init__()
        final_norm = norm_first if final_norm is None else final_norm
        sizes = (d_model, num_heads, d_ff, dropout, activation, norm_first)
        self.encoder = Encoder(
            [EncoderLayer(*sizes) for _ in range(num_encoder_layers)], nn.LayerNorm(d_model) if final_norm else None
        )
        self.decoder = Decoder(
            [DecoderLayer(*sizes) for _ in range(num_decoder_layers)], nn.LayerNorm(d_model) if final_norm else None
        )
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(
        self,
        source: Any,
        target: Any,
        source_mask: Any = None,
        target_mask: Any = None,
        memory_mask: Any = None,
        target_is_causal: bool = False,
        need_weights: bool = False,
    ) -> Any:
        """source (B, N_s, D) and target (B, N_t, D) to (B, N_t, D).

        Args:
            source_mask: for the encoder's self-attention; padding of the source is `keep[:, None, None, :]`,
                keep (B, N_s).
            target_mask, target_is_causal: for the decoder's self-attention; both must allow.
            memory_mask: for the decoder's attention to the source.
            need_weights: also return the weights, with the paths "encoder.layers.0.self_attn",
                "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn" ...
        """
        weights: Weights = {}
        memory = keep_weights(self.encoder(source, source_mask, need_weights=need_weights), weights, "encoder")
        result = self.decoder(target, memory, target_mask, memory_mask, target_is_causal, need_weights)
        output = keep_weights(result, weights, "decoder")
        return (output, weights) if need_weights else output
