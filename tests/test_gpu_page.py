"""What docs/gpu.md says of the launches and waits of a training step is what the stand-in for CuPy counts."""

import re
from pathlib import Path

import numpy as np
import pytest

import kernels.parameters
import minigrad as mg
import nn.functional as F
from models import Transformer
from nn import losses
from nn.optim import AdamW, GradScaler, adam, clip_grad_norm_
from tests.cupy_standin import installed
from tests.cupy_standin.cuda import counting_launches, counting_waits
from tests.kernels.emulator.compiled import needs_compiler

pytestmark = [needs_compiler, pytest.mark.cpu_only(reason="it brings its own stand-in")]

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"


def step(layers, amp):
    """Launches and waits of each part of the second step of a Transformer, and how many parameters it has."""
    mg.manual_seed(0)
    model = Transformer(
        11, 11, d_model=16, num_heads=2, d_ff=16, num_encoder_layers=layers, num_decoder_layers=layers, dropout=0.1,
        activation="gelu", final_norm=True,
    ).to("cuda")  # fmt: skip
    optimizer, scaler = AdamW(model.parameters()), GradScaler(enabled=amp)
    source, target = (mg.Tensor(ids, device="cuda") for ids in np.random.default_rng(0).integers(1, 11, (2, 3, 6)))
    launches, waits = {}, {}

    def counted(part, function):
        with counting_launches() as launched, counting_waits() as waited, mg.autocast(enabled=amp):
            result = function()
        launches[part], waits[part] = launched.total(), waited.total()
        return result

    def loss_of(logits):
        return scaler.scale(F.cross_entropy(logits.reshape(-1, 11), target[:, 1:].reshape(-1), ignore_index=0))

    for _ in range(2):  # the first makes the optimizer's state
        optimizer.zero_grad()
        logits = counted("forward", lambda: model(source, target[:, :-1]))
        loss = counted("loss", lambda logits=logits: loss_of(logits))
        counted("backward", loss.backward)
        counted("unscale", lambda: scaler.unscale_(optimizer))
        counted("clip", lambda: clip_grad_norm_(model.parameters(), 1.0))
        counted("step", lambda: (scaler.step(optimizer), scaler.update()))
    return launches, waits, len(list(model.parameters()))


def steps():
    """Of 2 and 6 layers, without and with mixed precision."""
    with installed():
        return {(layers, amp): step(layers, amp) for layers in (2, 6) for amp in (False, True)}


def numbers_of_page(after):
    """The rows of numbers of the first table after this heading."""
    table = PAGE.read_text(encoding="utf-8").partition(f"\n## {after}\n")[2].partition("|---|")[2].partition("\n\n")[0]
    return [[int(number) for number in re.findall(r"\| (\d+)(?= \|)", row)] for row in table.splitlines()[1:]]


def test_the_numbers_of_launches_and_waits(monkeypatch):
    with_kernels = steps()
    for module in (F, losses, adam, kernels.parameters):
        monkeypatch.setattr(module, "are_taken", lambda *arrays: False)
    without = steps()
    assert [count for _, _, count in with_kernels.values()] == [68, 68, 188, 188]

    def column(found):
        parts, totals = found[2, False][0], [sum(launches.values()) for launches, _, _ in found.values()]
        return [*[parts[name] for name in ("forward", "loss", "backward", "clip", "step")], *totals]

    rows = [list(row) for row in zip(column(without), column(with_kernels), strict=True)]
    assert rows == numbers_of_page("What a training step launches")

    ids, classes, gradients, finite = [row[0] for row in numbers_of_page("What a training step waits for")]
    for (_, amp), (_, waits, _) in with_kernels.items():
        unscale = finite if amp else 0
        expected = {"forward": ids, "loss": classes, "backward": gradients, "unscale": unscale, "clip": 0, "step": 0}
        assert waits == expected
