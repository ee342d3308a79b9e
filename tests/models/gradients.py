"""Gradients of a model beside those of PyTorch's."""

from typing import Any

import numpy as np

from nn import Module
from tests.support import assert_close


def assert_same_gradients(ours: Module, theirs: Any, tolerance: float) -> None:
    """Each parameter of PyTorch's model has one of the same name in ours, with the same gradient.

    That of a key's bias is 0 in theory, since it moves all scores of a row alike: it must be small beside the query's.
    """
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert set(found) >= set(expected)
    for name, gradient in expected.items():
        if not name.endswith("in_proj_bias"):
            assert_close(found[name], gradient, tolerance, name)
            continue
        (q, k, v), (q_expected, _, v_expected) = np.split(found[name].numpy(), 3), np.split(gradient.numpy(), 3)
        assert_close(q, q_expected, tolerance, f"{name} of the query")
        assert_close(v, v_expected, tolerance, f"{name} of the value")
        assert np.linalg.norm(k) <= 1e-5 * np.linalg.norm(q), f"{name} of the key"
