"""Pictures: they are written, whole, when matplotlib is there."""

import numpy as np
import pytest

from training import plots

HISTORY = [{"step": 10, "loss": 2.0, "exact_match": 0.0}, {"step": 20, "loss": 0.5, "exact_match": 0.75}]


def test_curves_and_attention_are_png_files(tmp_path):
    pytest.importorskip("matplotlib")
    plots.draw_curves(tmp_path / "curves.png", HISTORY)
    weights = {"decoder.layers.0.multihead_attn": np.full((4, 3, 4), 0.25)}
    plots.draw_attention(tmp_path / "attention.png", weights, "$あ$", "ab")
    for name in ("curves.png", "attention.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attention.png", "curves.png"]
