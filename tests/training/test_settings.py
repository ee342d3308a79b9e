"""The table of settings: every value out of its range is refused in one line that names the flag."""

import dataclasses

import pytest

from training.settings import DEFAULTS, Settings, SettingsError, settings_for
from training.tasks import TASKS


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("d_model", 0, "--d-model must be from 1 to 100000, not 0"),
        ("batch_size", 10**20, "--batch-size must be from 1 to 100000, not 1" + "0" * 20),
        ("encoder_layers", 10**6, "--encoder-layers must be from 1 to 1000, not 1000000"),
        ("steps", 0, "--steps must be from 1 to 1000000000, not 0"),
        ("warmup", -1, "--warmup must be from 0 to 1000000000, not -1"),
        ("dropout", 1.5, "--dropout must be 0 or more and below 1, not 1.5"),
        ("dropout", 1.0, "--dropout must be 0 or more and below 1, not 1.0"),
        ("dropout", float("nan"), "--dropout must be 0 or more and below 1, not nan"),
        ("lr", float("nan"), "--lr must be a finite number above 0, not nan"),
        ("lr", float("inf"), "--lr must be a finite number above 0, not inf"),
        ("lr", 0.0, "--lr must be a finite number above 0, not 0.0"),
        ("clip", -1.0, "--clip must be a finite number, 0 or more, not -1.0"),
        ("label_smoothing", 1.0, "--label-smoothing must be 0 or more and below 1, not 1.0"),
        ("activation", "tanh", "--activation must be relu or gelu or gelu_tanh, not 'tanh'"),
        ("schedule", "linear", "--schedule must be cosine or warmup or constant, not 'linear'"),
        ("optimizer", "lion", "--optimizer must be adam or adamw or sgd, not 'lion'"),
        ("seed", -1, r"--seed must be from 0 to 2\*\*64 - 1, not -1"),
        ("device", "gpu", "--device must be cpu, cuda or cuda:1, not 'gpu'"),
        ("threads", 0, "--threads must be from 1 to 128, not 0"),
    ],
)
def test_a_value_out_of_its_range(name, value, message):
    with pytest.raises(SettingsError, match=f"^{message}$"):
        Settings(**{name: value})


def test_heads_divide_the_width():
    with pytest.raises(SettingsError, match=r"^--d-model must be a multiple of --heads, and 30 is not one of 4$"):
        Settings(d_model=30, heads=4)


def test_a_dtype_of_mixed_precision_without_it():
    with pytest.raises(SettingsError, match=r"^--amp-dtype bfloat16 says nothing without --amp; give both$"):
        Settings(amp_dtype="bfloat16")


def test_every_default_is_in_its_range():
    for task in TASKS:
        settings_for(task, {})
    assert set(DEFAULTS) <= set(TASKS)


def test_what_is_given_comes_before_a_tasks_defaults():
    for task, defaults in DEFAULTS.items():
        for name, value in defaults.items():
            assert getattr(settings_for(task, {}), name) == value
        assert settings_for(task, {"steps": 7}).steps == 7
    assert settings_for("unknown", {"heads": 2}) == dataclasses.replace(Settings(), heads=2)
