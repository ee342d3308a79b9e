"""Every size and hyper-parameter of a run: its default, what it means and what values it may take.

`Settings` is the one table behind the command line's flags, their checks and their help, and a run's config.json.
`DEFAULTS` has what differs from it for a task. What a task itself can be asked (lengths, alphabet) belongs to the task.
"""

import math
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any


class SettingsError(ValueError):
    """A setting makes no sense. The message is one line that names it and the values it may take."""


@dataclass(frozen=True)
class Allowed:
    """The values that a setting may take, in words and as a test (which is false for NaN)."""

    words: str
    test: Callable[[Any], bool]


def one_of(*choices: str) -> Allowed:
    return Allowed(" or ".join(choices), lambda value: value in choices)


def between(lowest: int, highest: int) -> Allowed:
    return Allowed(f"from {lowest} to {highest}", lambda value: lowest <= value <= highest)


LAYERS = between(1, 1000)
SIZE = between(1, 100_000)
"""For what is held in memory, which a typing error must not fill."""
STEPS = between(1, 10**9)
THREADS = between(1, 128)
ABOVE_0 = Allowed("a finite number above 0", lambda value: 0 < value < math.inf)
FROM_0 = Allowed("a finite number, 0 or more", lambda value: 0 <= value < math.inf)
BELOW_1 = Allowed("0 or more and below 1", lambda value: 0 <= value < 1)
SEED = Allowed("from 0 to 2**64 - 1", lambda value: 0 <= value < 2**64)
YES_NO = Allowed("yes or no", lambda value: isinstance(value, bool))
DEVICE = Allowed("cpu, cuda or cuda:1", lambda value: re.fullmatch(r"cpu|cuda(:\d+)?", value) is not None)


def _setting(default: Any, allowed: Allowed, meaning: str) -> Any:
    return field(default=default, metadata={"allowed": allowed, "meaning": meaning})


@dataclass(frozen=True)
class Settings:
    """The sizes and hyper-parameters of one run. Raises SettingsError for a value outside its range."""

    d_model: int = _setting(64, SIZE, "width of the model, D")
    heads: int = _setting(4, SIZE, "attention heads, a divisor of --d-model")
    encoder_layers: int = _setting(2, LAYERS, "encoder layers")
    decoder_layers: int = _setting(2, LAYERS, "decoder layers")
    d_ff: int = _setting(256, SIZE, "width of the feed-forward layers")
    dropout: float = _setting(0.0, BELOW_1, "probability of dropping a number")
    activation: str = _setting("relu", one_of("relu", "gelu", "gelu_tanh"), "of the feed-forward layers")
    norm_first: bool = _setting(False, YES_NO, "layer norm before each sub-layer instead of after it")
    tie_embeddings: bool = _setting(
        False, YES_NO, "one matrix for the embeddings and the output layer, where sizes allow"
    )
    positions: str = _setting("sinusoidal", one_of("sinusoidal", "learned"), "how positions are encoded")

    batch_size: int = _setting(64, SIZE, "examples in a step")
    steps: int = _setting(600, STEPS, "steps in all")
    optimizer: str = _setting("adam", one_of("adam", "adamw", "sgd"), "how parameters are updated")
    lr: float = _setting(2e-3, ABOVE_0, "learning rate, at its highest")
    schedule: str = _setting(
        "cosine", one_of("cosine", "warmup", "constant"), "how the learning rate goes: 'warmup' is the paper's"
    )
    warmup: int = _setting(100, between(0, 10**9), "steps over which the learning rate rises")
    weight_decay: float = _setting(0.0, FROM_0, "of the optimizer")
    label_smoothing: float = _setting(0.0, BELOW_1, "share of the target spread over all symbols")
    clip: float = _setting(1.0, FROM_0, "longest gradient (norm over all parameters); 0 for no limit")

    eval_every: int = _setting(200, STEPS, "steps between evaluations, each of which saves a checkpoint")
    eval_size: int = _setting(200, SIZE, "held-out examples in an evaluation while training")
    test_size: int = _setting(1000, SIZE, "further held-out examples, for the report at the end")
    beam: int = _setting(1, SIZE, "beams for the report and the answers; 1 is greedy decoding")

    amp: bool = _setting(
        False, YES_NO, "mixed precision: products of 16 bits, for GPUs that are fast at them; parameters stay float32"
    )
    amp_dtype: str = _setting("float16", one_of("float16", "bfloat16"), "of these products")
    seed: int = _setting(0, SEED, "of the parameters, the examples and dropout")
    device: str = _setting("cpu", DEVICE, "where to compute")
    threads: int = _setting(1, THREADS, "that share each batch on a CPU; a GPU takes it whole")

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, allowed = getattr(self, setting.name), setting.metadata["allowed"]
            if not allowed.test(value):
                raise SettingsError(f"{flag(setting.name)} must be {allowed.words}, not {value!r}")
        if self.amp_dtype != "float16" and not self.amp:
            raise SettingsError(f"--amp-dtype {self.amp_dtype} says nothing without --amp; give both")
        if self.d_model % self.heads:
            raise SettingsError(
                f"--d-model must be a multiple of --heads, and {self.d_model} is not one of {self.heads}"
            )


DEFAULTS: dict[str, dict[str, Any]] = {
    "addition": {"steps": 6000},
    "dates": {"steps": 1500},
    "sort": {"steps": 800},
}


def settings_for(task: str, given: dict[str, Any]) -> Settings:
    """The settings of `task`, with those in `given` in place of its defaults. Raises SettingsError."""
    return Settings(**{**DEFAULTS.get(task, {}), **given})


def flag(name: str) -> str:
    """How a setting is written on the command line: "--d-model" for "d_model"."""
    return "--" + name.replace("_", "-")


def typed(*words: object) -> str:
    """The command line with these words, by the same Python and the same train.py as this one, ready for a shell."""
    return shlex.join([sys.orig_argv[0], sys.argv[0], *map(str, words)])
