"""The README's examples run, and the flags in its commands exist."""

import re
from pathlib import Path

import pytest

import train

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> str:
    """All blocks of the README in this language, one after another."""
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL))


def test_the_python_blocks_run_one_after_another(capsys):
    exec(compile(blocks("python"), "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert "[18., 24.]" in printed  # 6 x
    assert "decoder.layers.0.multihead_attn (1, 4, 4, 4)" in printed


def test_the_flags_of_the_commands_exist(capsys):
    with pytest.raises(SystemExit):
        train.main(["--help"])
    known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    shown = {flag for command in re.findall(r"train\.py(.*)", README) for flag in re.findall(r"--[\w-]+", command)}
    assert shown >= {"--resume", "--answer", "--steps"}
    assert shown <= known
