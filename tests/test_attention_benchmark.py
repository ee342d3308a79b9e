"""The benchmark of attention runs, and says what it should. Nothing here depends on how fast this machine is."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import attention
from benchmarks.attention import Case
from benchmarks.engines import command
from benchmarks.engines.attention import Number, in_minigrad, in_pytorch
from benchmarks.engines.measuring import Measured
from benchmarks.engines.processes import Worker, WorkerError
from tests.support import torch_or_skip

pytestmark = pytest.mark.cpu_only(reason="it times rooms on a CPU")

ROOT = Path(__file__).parents[1]
GIB = 2**30


def measured(name, *seconds, peak=None):
    return Measured(name, "", peak, list(seconds))


@pytest.mark.slow
def test_the_whole_program(tmp_path):
    files = {"--json": tmp_path / "attention.json", "--plot": tmp_path / "attention.png"}
    command = [sys.executable, "benchmarks/attention.py", "--max-n", "128", "--rounds", "1", "--threads", "1"]
    command += ["--block", "0.01", *(str(part) for option in files.items() for part in option)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    engines = list(attention.ENGINES)
    if importlib.util.find_spec("torch") is None:
        engines.remove("torch")
        assert "torch is left out at N = 128: torch is not installed: pip install torch\n" in result.stdout
    found = [line.split()[0] for line in result.stdout.split("\n") if line.split(" ")[0] in engines]
    assert found == 2 * engines
    report = json.loads(files["--json"].read_text())
    assert {case: [(r["name"], len(r["seconds"])) for r in rows] for case, rows in report["results"].items()} == {
        f"{mask}, N = 128": [(name, 1) for name in engines] for mask in ("causal", "full")
    }
    assert report["threads"] == 1 and set(report["switch_over"]) == {"causal", "full"}
    if importlib.util.find_spec("matplotlib") is None:
        assert "There is no picture" in result.stdout
    else:
        assert files["--plot"].read_bytes().startswith(b"\x89PNG")


def test_the_switch_over_is_where_tiled_stays_ahead():
    fused, same = measured("fused", 1.0, 1.0, 1.0), measured("tiled", 1.0, 1.0, 1.0)
    results = {
        Case("causal", 128): [fused, measured("tiled", 0.5, 0.5, 0.5)],
        Case("causal", 256): [fused, measured("tiled", 2.0, 1.1, 0.1)],
        Case("causal", 1024): [fused, measured("tiled", 0.1, 0.2, 3.0)],
        Case("causal", 512): [fused, same],
        Case("causal", 2048): [same],  # where the fused room does not fit
        Case("full", 2048): [measured("fused", 8.0), measured("tiled", 9.0)],
    }
    assert attention.switch_over(results, "causal") == 512
    assert attention.switch_over(results, "full") is None


def test_what_may_not_fit_is_left_out_with_a_line(monkeypatch, capsys):
    monkeypatch.setattr(attention, "free_bytes", lambda: 16 * GIB)
    before = [measured("plain", peak=2 * GIB + 1), measured("fused", peak=2 * GIB), measured("tiled")]
    assert attention.fitting(1024, 512, before) == ["fused", "tiled"]
    said = "plain is left out at N = 1024: it may take 8.0 GiB, and 16.0 GiB are free\n"
    assert capsys.readouterr().out == said


def test_lengths_that_make_no_sense(monkeypatch, capsys):
    monkeypatch.setattr(command, "take_cores", lambda count: None)
    for arguments, text in (
        (("--min-n", "0"), "argument --min-n: must be an integer from 1 on, not '0'"),
        (("--max-n", "1k"), "argument --max-n: must be an integer from 1 on, not '1k'"),
        (("--max-n", "64"), "argument --min-n: must be at most --max-n, which is 64, not 128"),
    ):
        with pytest.raises(SystemExit):
            attention.main(arguments)
        assert capsys.readouterr().err.endswith(f"error: {text}\n")


# ---- an engine's process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("engine", attention.ENGINES)
def test_engines_give_the_same_numbers(engine, is_causal):
    if engine == "torch":
        torch_or_skip()
    arrays = [np.random.default_rng(i).standard_normal((1, 8, 40, 64), np.float32) for i in range(4)]
    q, k, v, g = (array.astype(np.float64) for array in arrays)
    scores = q @ k.swapaxes(2, 3) / 8 + (np.triu(np.full((40, 40), -np.inf), 1) if is_causal else 0)
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    d_p = g @ v.swapaxes(2, 3)
    d_scores = p * (d_p - (d_p * p).sum(-1, keepdims=True)) / 8
    expected = [float(Number(x)) for x in (p @ v, d_scores @ k, d_scores.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g)]
    step = (in_pytorch if engine == "torch" else in_minigrad)(engine, arrays, is_causal, 1)
    assert [float(number) for number in step()] == pytest.approx(expected, rel=1e-6)


def test_a_number_depends_on_each_of_the_last_rows():
    x = np.random.default_rng(0).standard_normal((1, 8, 40, 64))
    for place in ((0, 0, 39, 0), (0, 7, 24, 63)):
        changed = x.copy()
        changed[place] += 1
        assert float(Number(changed)) != pytest.approx(float(Number(x)), rel=attention.TOLERANCE)


def test_a_process_answers():
    with Worker("tiled", 20, "full", 1, module="attention") as process:
        assert process.ready() == f"numpy {np.__version__}"
        assert len(process.results(1)) == 4 and process.seconds(1) > 0 and process.peak_bytes() is not None


def test_an_engine_that_dies_is_left_out(monkeypatch, capsys):
    ready = Worker.ready

    def dying(worker):
        if worker.engine == "plain":
            raise WorkerError("plain: exit status -9")
        return ready(worker)

    monkeypatch.setattr(Worker, "ready", dying)
    assert [result.name for result in attention.measure(["plain", "tiled"], Case("full", 20), 1, 1, 0.01)] == ["tiled"]
    assert capsys.readouterr().out == "plain is left out at N = 20: plain: exit status -9\n"
