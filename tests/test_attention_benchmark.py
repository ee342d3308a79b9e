"""The benchmark of attention runs, and says what it should. Nothing here depends on how fast this machine is."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import attention
from benchmarks.attention import Died, Engine, Measured, NotTheSame

ROOT = Path(__file__).parents[1]
GIB = 2**30


def measured(engine, length, *seconds, is_causal=True, peak=None):
    return Measured(engine, length, is_causal, peak, list(seconds))


@pytest.mark.slow
@pytest.mark.cpu_only(reason="it times rooms on a CPU")
def test_the_whole_program(tmp_path):
    files = {"--json": tmp_path / "attention.json", "--plot": tmp_path / "attention.png"}
    command = [sys.executable, "benchmarks/attention.py", "--max-n", "128", "--rounds", "1", "--threads", "1"]
    command += [str(part) for option in files.items() for part in option]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    engines = list(attention.ENGINES)
    if importlib.util.find_spec("torch") is None:
        engines.remove("PyTorch")
    lines = [line.split() for line in result.stdout.splitlines()]
    found = [(mask, name) for mask, n, name, *_ in [line for line in lines if line[1:2] == ["128"]]]
    assert found == [(mask, name) for mask in ("causal", "full") for name in engines]
    report = json.loads(files["--json"].read_text())
    assert [(r["engine"], r["length"], len(r["seconds"])) for r in report["results"]] == 2 * [
        (name, 128, 1) for name in engines
    ]
    assert report["threads"] == 1 and set(report["switch_over"]) == {"causal", "full"}
    if importlib.util.find_spec("matplotlib") is None:
        assert "There is no picture" in result.stdout
    else:
        assert files["--plot"].read_bytes().startswith(b"\x89PNG")


def test_the_switch_over_is_where_tiled_stays_ahead():
    results = [
        *[measured("fused", n, 1.0, 1.0, 1.0) for n in (128, 256, 512, 1024)],
        *[
            measured("tiled", n, *seconds)
            for n, seconds in ((128, (0.5,) * 3), (256, (2.0, 1.1, 0.1)), (512, (1.0,) * 3))
        ],
        measured("tiled", 1024, 0.1, 0.2, 3.0),
        measured("tiled", 2048, 9.0),  # where the fused room does not fit
        measured("tiled", 2048, 9.0, is_causal=False),
        measured("fused", 2048, 8.0, is_causal=False),
    ]
    assert attention.switch_over(results, is_causal=True) == 512
    assert attention.switch_over(results, is_causal=False) is None


def test_what_may_not_fit_is_left_out_with_a_line(monkeypatch, capsys):
    monkeypatch.setattr(attention, "free_bytes", lambda: 16 * GIB)
    before = [measured("plain", 512, peak=2 * GIB + 1), measured("fused", 512, peak=2 * GIB), measured("tiled", 512)]
    names = ["plain", "fused", "tiled", "PyTorch"]
    assert attention.fitting(names, 1024, before) == ["fused", "tiled"]
    said = "plain at N = 1024 is left out: it may take 8.0 GiB, and 16.0 GiB are free\n"
    assert capsys.readouterr().out == said  # of PyTorch, which had been left out before, it was said then
    assert attention.fitting(names, 128, []) == names


def test_an_engine_that_disagrees_stops_it():
    right = [np.ones((1, 8, 16, 64), np.float32)] * 4
    attention.check("tiled", right, right)
    with pytest.raises(NotTheSame, match=r"tiled: d_key is off by 1\.0e-04"):
        attention.check("tiled", [*right[:2], right[2] * np.float32(1.0001), right[3]], right)


def test_a_process_that_dies_is_noticed():
    with Engine("no room", 128, True, 1) as engine, pytest.raises(Died, match="its process ended with status 1"):
        engine.ask("check")
