"""The decoder symbol after symbol, beside the decoder on whole targets."""

import threading

import numpy as np
import pytest

import minigrad as mg
import minigrad.dividing
import models.transformer
import nn
from models import Transformer, greedy_decode
from models.stack import DecoderLayer
from nn.embedding import PositionalEncoding
from tests.models.decoding import BOS, EOS, PAD, A, WithoutCache, beam_of_three, random_model, random_sources
from tests.support import assert_close

VARIANTS = [
    {},
    {"norm_first": True},
    {"norm_first": True, "final_norm": False, "activation": "gelu"},
    {"final_norm": True, "positions": "learned"},
    {"positions": "learned", "tie_embeddings": True},
    {"num_decoder_layers": 1, "num_encoder_layers": 3, "activation": "gelu_tanh"},
]


@pytest.mark.parametrize("bos", [BOS, PAD], ids=["bos", "bos is padding"])
@pytest.mark.parametrize("decode", [greedy_decode, beam_of_three])
@pytest.mark.parametrize("options", VARIANTS)
def test_the_cache_changes_no_answer(options, decode, bos):
    lengths = set()
    for seed in range(6):
        sources = random_sources(seed, vocabulary=9)
        sources[0] = PAD  # nothing of it may be attended to
        with_cache, without = [random_model(seed, 9, kind, **options) for kind in (Transformer, WithoutCache)]
        answers = decode(with_cache, sources, bos, EOS, 16)
        np.testing.assert_array_equal(answers, decode(without, sources, bos, EOS, 16))
        lengths |= {int(n) for n in np.count_nonzero(answers, axis=1)}
    assert len(lengths) > 1  # rows that ended at different places


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12), ("float16", 2e-3), ("bfloat16", 1e-2)]
)
@pytest.mark.parametrize("options", VARIANTS)
def test_symbol_after_symbol_gives_what_the_whole_gives(options, dtype, tolerance):
    model, sources = random_model(0, 9, **options).to(dtype).eval(), random_sources(0, vocabulary=9)
    targets = np.random.default_rng(1).integers(3, 9, (6, 8))
    targets[:, 0] = BOS
    targets[2, 3] = targets[3, 5:] = targets[4, 0] = targets[4, 2] = PAD
    whole = model(sources, targets).numpy()  # (B, N, V)
    cache = model.cache(sources, 8)
    for place in range(8):
        logits = model.decode_next(targets[:, place], cache)
        assert logits.dtype == dtype and not logits.requires_grad
        assert_close(logits.double(), whole[:, place], tolerance)


@pytest.mark.cpu_only(reason="on a GPU nothing is divided over threads")
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_large_batches_are_encoded_in_parts_in_as_many_threads(monkeypatch, rows):
    """In the mode and precision of the caller; not while somebody watches, who sees his own thread only."""
    threads = []

    class Noted(Transformer):
        def encode(self, source_ids, need_weights=False):
            assert not mg.is_grad_enabled()
            threads.append(threading.get_ident())
            return super().encode(source_ids, need_weights)

    monkeypatch.setattr(minigrad.dividing, "_count", 4)
    model, sources = random_model(0, 9, Noted), random_sources(0, rows, 9)
    whole = greedy_decode(model, sources, BOS, EOS, 6)
    assert threads == [threading.get_ident()]  # the batch is small
    monkeypatch.setattr(models.transformer, "LEAST_IN_PARTS", 0)
    threads.clear()
    np.testing.assert_array_equal(greedy_decode(model, sources, BOS, EOS, 6), whole)
    assert len(threads) == len(set(threads)) == min(rows, 4)
    with mg.autocast("float16"):
        assert model.eval().cache(sources, 6).batch == rows
    threads.clear()
    with mg.tracing():
        np.testing.assert_array_equal(greedy_decode(model, sources, BOS, EOS, 6), whole)
    assert threads == [threading.get_ident()]


def test_layers_of_other_kinds_are_called_symbol_after_symbol_too():
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    model, sources = random_model(0, 9).eval(), random_sources(0, vocabulary=9)
    layer = model.decoder.layers[0]
    layer.norm1, layer.linear1 = nn.RMSNorm(16), Doubled(16, 32)
    layer.self_attn.out_proj, model.generator = Doubled(16, 16), Doubled(16, 9)
    targets = np.random.default_rng(1).integers(3, 9, (6, 4))
    whole, cache = model(sources, targets).numpy(), model.cache(sources, 4)
    for place in range(4):
        assert_close(model.decode_next(targets[:, place], cache), whole[:, place], 1e-5)


class Shifted(PositionalEncoding):
    def forward(self, x):
        return super().forward(x * 2)


class Scaled(DecoderLayer):
    def _residual(self, x, sublayer, norm):
        return super()._residual(x, sublayer, norm) * 2


class Hasty(nn.MultiHeadAttention):
    def forward(self, *args, **options):
        return super().forward(*args, **options) * 0.5


class Brief(Transformer):
    def decode(self, *args, **options):
        return super().decode(*args, **options) * 2


def exchange(part, model):
    layers = model.decoder.layers
    if part == "dropout":
        model.dropout = nn.LayerNorm(16)
    elif part == "positions":
        model.target_positions = Shifted(16, 16)
    elif part == "layer":
        layers[1] = Scaled(16, 2, 32)
    elif part == "attention":
        layers[0].multihead_attn = Hasty(16, 2)
    elif part in ("a forward of its own", "linear1"):
        changed = layers[0].self_attn if part == "a forward of its own" else layers[0].linear1
        forward = changed.forward
        changed.forward = lambda *args, **options: 0.5 * forward(*args, **options)


PARTS = ["dropout", "positions", "layer", "attention", "a forward of its own", "linear1", "decode"]


@pytest.mark.parametrize("part", PARTS)
def test_parts_that_the_cache_does_not_know_are_decoded_as_a_whole(part):
    model = random_model(0, 9, kind=Brief if part == "decode" else Transformer)
    exchange(part, model)
    model.eval()
    sources = random_sources(0, vocabulary=9)
    targets = np.random.default_rng(1).integers(3, 9, (6, 4))
    whole, cache = model(sources, targets).numpy(), model.cache(sources, 4)
    for place in range(2):
        assert cache.length == place
        assert_close(model.decode_next(targets[:, place], cache), whole[:, place], 1e-5)
    with pytest.raises(TypeError, match="must be integers"):
        model.decode_next(targets[:, 2] * 1.0, model.cache(sources, 4))
    rows = np.array([4, 1, 1])
    cache.take(rows)
    assert cache.batch == 3
    for place in range(2, 4):
        assert_close(model.decode_next(targets[rows, place], cache), whole[rows, place], 1e-5)
    with pytest.raises(ValueError, match="after 4 symbols"):
        model.decode_next(targets[rows, 0], cache)


def test_a_source_without_symbols():
    model = random_model(0, 9).eval()
    sources, targets = np.zeros((2, 0), int), np.array([[BOS], [A]])
    assert_close(model.decode_next(targets[:, 0], model.cache(sources, 1)), model(sources, targets)[:, 0], 1e-5)


def test_a_cache_is_not_for_more_symbols_than_the_model():
    with pytest.raises(ValueError, match="a sequence of length 17 was given, but max_length is 16"):
        random_model(0).cache([[A]], 17)


def test_the_cache_goes_on_with_the_rows_that_are_taken():
    model, sources = random_model(0, 9).eval(), random_sources(0, vocabulary=9)
    targets = np.random.default_rng(1).integers(3, 9, (6, 6))
    targets[1, 0] = PAD
    rows = np.array([4, 1, 1, 0])
    whole = model(sources[rows], targets[rows]).numpy()
    cache = model.cache(sources, 6)
    for place in range(3):
        model.decode_next(targets[:, place], cache)
    cache.take(rows)
    assert cache.batch == 4
    for place in range(3, 6):
        assert_close(model.decode_next(targets[rows, place], cache), whole[:, place], 1e-5)
    with pytest.raises(ValueError, match=r"decode_next: ids of shape \(4,\) .* after 6 symbols .* and for 6 symbols"):
        model.decode_next(targets[rows, 0], cache)
    with pytest.raises(ValueError, match=r"ids of shape \(1,\) .* is for ids of shape \(6,\)"):
        model.decode_next(targets[:1, 0], model.cache(sources, 6))
    with pytest.raises(TypeError, match="ids must be integers"):
        model.decode_next(targets[:, 0] * 1.0, model.cache(sources, 6))


@pytest.mark.parametrize("decode", [greedy_decode, beam_of_three])
def test_answers_in_mixed_precision(decode):
    """As they are without a cache, where logits are far enough apart for 16 bits."""
    found = []
    for kind in (Transformer, WithoutCache):
        with mg.autocast("float16"):
            found.append(decode(random_model(3, 9, kind), random_sources(3, vocabulary=9), BOS, EOS, 10).tolist())
    assert found[0] == found[1]
