"""Layers as functions of arrays, beside the layers."""

import numpy as np
import pytest

import minigrad as mg
import nn
from nn.cached_layers import CachedLayerNorm, CachedLinear, on_arrays
from tests.support import assert_close

B, D = 3, 8


class Doubled(nn.Linear):
    """A layer of another kind, that is made from one of the kinds that are known."""

    def forward(self, x):
        return super().forward(x) * 2


LAYERS = [
    lambda: nn.Linear(D, 5),
    lambda: nn.Linear(D, 5, bias=False),
    lambda: Doubled(D, 5),
    lambda: nn.LayerNorm(D),
    lambda: nn.LayerNorm(D, eps=10.0),
    lambda: nn.LayerNorm(D, bias=False),
    lambda: nn.LayerNorm(D, elementwise_affine=False),
    lambda: nn.RMSNorm(D),
    lambda: nn.Sequential(nn.Linear(D, 5), nn.LayerNorm(5)),
]


def with_drawn_parameters(layer, dtype):
    mg.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14), ("float16", 2e-3), ("bfloat16", 1e-2)]
)
@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize("layer", LAYERS)
def test_arrays_give_what_the_layer_gives(layer, rows, dtype, tolerance):
    layer = with_drawn_parameters(layer(), dtype)
    x = (mg.randn(rows, D) * 3 + 1).to(dtype)
    before = x.tolist()
    with mg.no_grad():
        y = mg.Tensor(on_arrays(layer)(x.data))
        assert y.dtype == dtype
        assert_close(y.double(), layer(x).double(), tolerance)
    assert x.tolist() == before


def test_a_layer_norm_is_the_definition():
    layer, x = with_drawn_parameters(nn.LayerNorm(D), "float32"), mg.randn(B, D) * 3 + 1
    rows, weight, bias = [t.numpy().astype(np.float64) for t in (x, layer.weight, layer.bias)]
    away = rows - rows.mean(axis=1, keepdims=True)
    expected = away / np.sqrt((away**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    assert_close(mg.Tensor(on_arrays(layer)(x.data)), expected, 1e-6)


def test_ids_give_the_rows_of_an_embedding_and_none_is_out_of_range():
    layer = nn.Embedding(5, D)
    ids = mg.Tensor([4, 0, 4])
    rows = mg.Tensor(on_arrays(layer)(ids.data))
    assert rows.tolist() == layer.weight[ids].tolist()
    for wrong in (5, -1):
        with pytest.raises(IndexError, match=f"embedding: id {wrong} is out of range for a weight of 5 rows"):
            on_arrays(layer)(mg.Tensor([0, wrong]).data)


@pytest.mark.cpu_only(reason="a layer norm is one kernel on a GPU")
def test_the_kinds_that_are_known_do_not_call_the_layer():
    """Else nothing is gained."""
    assert type(on_arrays(nn.Linear(D, 5))) is CachedLinear
    assert type(on_arrays(nn.LayerNorm(D))) is CachedLayerNorm
