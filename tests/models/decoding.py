"""What the tests of decoding share: untrained models, sources, and a model that keeps nothing of what it has read."""

import numpy as np

import minigrad as mg
from models import Transformer, beam_decode

PAD, BOS, EOS, A, B = 0, 1, 2, 3, 4


class WithoutCache(Transformer):
    """Reads all that is written again for each symbol: what decoding must give, by `decode` alone."""

    class Written:
        """Stands for the cache."""

        def __init__(self, memory, source):
            self.memory, self.source, self.batch = memory, source, len(source)
            self.ids = np.zeros((len(source), 0), int)

        def take(self, rows):
            self.memory, self.source, self.ids = self.memory[rows], self.source[rows], self.ids[rows]

    def cache(self, source_ids, max_length):
        return self.Written(self.encode(source_ids), mg.Tensor(source_ids, device=self.generator.weight.device))

    def decode_next(self, ids, cache):
        cache.ids = np.concatenate([cache.ids, ids[:, None]], axis=1)
        return self.decode(cache.ids, cache.memory, cache.source)[:, -1]


def random_model(seed, vocabulary=5, kind=Transformer, **options):
    """Untrained, but with logits so far apart that its choices are clear."""
    mg.manual_seed(seed)
    model = kind(vocabulary, vocabulary, d_model=16, num_heads=2, d_ff=32, dropout=0.1, max_length=16, **options)
    with mg.no_grad():
        model.generator.weight.copy_(model.generator.weight * 4)
    return model


def random_sources(seed, rows=6, vocabulary=5):
    ids = np.random.default_rng(seed).integers(3, vocabulary, (rows, 7))
    ids[1::2, 4:] = PAD
    return ids


def beam_of_three(*args):
    return beam_decode(*args, beam_size=3)
