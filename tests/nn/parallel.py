"""A small Transformer's loss and batches with padding, for tests of ParallelLoss."""

import numpy as np

import minigrad as mg
import nn
import nn.functional as F
from models import Transformer
from tests.support import assert_close

PAD, VOCABULARY = 0, 11
RNG = np.random.default_rng(0)


def batch_of(*lengths, n_max=7):
    """Ids (B, N), with so many symbols in each row and padding behind."""
    ids = RNG.integers(1, VOCABULARY, (len(lengths), n_max))
    ids[np.arange(n_max) >= np.array(lengths)[:, None]] = PAD
    return ids


FIVE = batch_of(7, 2, 5, 1, 4), batch_of(3, 6, 2, 7, 2)
"""Source and target of five examples."""


class Loss:
    """The loss of a small Transformer with tied embeddings, and a parameter that takes no part."""

    def __init__(self, dtype="float64", dropout=0.0, label_smoothing=0.1):
        mg.manual_seed(3)
        self.model = Transformer(
            VOCABULARY, VOCABULARY, d_model=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, d_ff=16,
            dropout=dropout, max_length=8, pad_id=PAD, tie_embeddings=True,
        ).to(dtype)  # fmt: skip
        self.model.unused = nn.Parameter(mg.ones(3, dtype=dtype))
        self.label_smoothing = label_smoothing

    def __call__(self, source, target):
        logits = self.model(source, target[:, :-1])
        expected = target[:, 1:]
        options = {"ignore_index": PAD, "label_smoothing": self.label_smoothing}
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), mg.Tensor(expected.reshape(-1)), **options)
        return loss, np.count_nonzero(expected != PAD)

    def gradients(self):
        """Those of the parameters, which are then forgotten; None for no gradient."""
        found = {name: None if p.grad is None else p.grad.numpy() for name, p in self.model.named_parameters()}
        self.model.zero_grad()
        return found


def assert_same_gradients(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None, name
        else:
            assert found[name].dtype == gradient.dtype, name
            # The softmax takes a key's bias out again: what is left of its gradient is rounding.
            assert_close(found[name], gradient, tolerance, name, least=0.1)  # the largest are about 1


def same_bits(a, b):
    return all((x is None and b[name] is None) or x.tobytes() == b[name].tobytes() for name, x in a.items())
