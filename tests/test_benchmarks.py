"""The benchmarks run, and the one for a GPU fails where it should. Nothing here depends on how fast this machine is."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import attention, report
from benchmarks.attention import Case, Timing
from benchmarks.attention_reference import attention_by_rows
from benchmarks.measuring import Deadline
from benchmarks.report import Report, Row
from minigrad.backend import cuda_available
from tests.kernels.emulator.compiled import needs_compiler
from tests.kernels.reference import Attention

ROOT = Path(__file__).parents[1]


def run(program, *arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def rows_of(text):
    """The lines of the table: (verdict, the rest)."""
    return re.findall(r"^(pass|fail|skipped) +(.*)", text, re.MULTILINE)


def test_bookkeeping():
    result = run("bookkeeping.py", "--pairs", "20")
    assert result.returncode == 0 and "forward in no_grad" in result.stdout


# ---- benchmarks/gpu.py, whole ----------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.slow
def test_a_dry_run_goes_through_everything(tmp_path):
    result = run("gpu.py", "--dry-run", "--out", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    table = (tmp_path / "gpu.txt").read_text()
    assert table == result.stdout
    rows = rows_of(table)
    assert len(rows) == 65 and {verdict for verdict, _ in rows} == {"pass"}
    speeds = [words.split() for _, words in rows if "forward" in words or "backward" in words]
    assert len(speeds) == 24
    for words in speeds:
        place = words.index("forward") if "forward" in words else words.index("backward")
        error, ms, ours, flash, efficient, cudnn, math, cupy = words[place + 1 : place + 9]
        assert all(float(cell) > 0 for cell in (error, ms, ours, cupy))
        assert {efficient, cudnn} == {"-"}  # PyTorch's own words on a CPU
        assert (flash == math == "-") or (float(flash) > 0 and float(math) > 0)  # without PyTorch, and with it
    if "no picture" not in table:
        assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")


@needs_compiler
def test_when_no_time_is_left_rows_are_skipped(tmp_path):
    result = run("gpu.py", "--dry-run", "--seconds", "0", "--out", str(tmp_path))
    rows = rows_of(result.stdout)
    assert {verdict for verdict, _ in rows} == {"skipped"} and all("no time left" in words for _, words in rows)
    assert result.returncode == 1  # nothing has passed


@pytest.mark.skipif(cuda_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    result = run("gpu.py", "--out", str(tmp_path))
    assert result.returncode == 1 and result.stdout == ""
    assert re.fullmatch(r"gpu\.py: device 'cuda'.*--dry-run needs no GPU\n", result.stderr)


# ---- its parts -------------------------------------------------------------------------------------------------------


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "causal_offset": -2}, {"key_lengths": np.array([0, 3])}])
@pytest.mark.parametrize("scores", [1, 2**25])
def test_attention_by_rows_is_that_of_the_formulas(options, scores, monkeypatch):
    monkeypatch.setattr("benchmarks.attention_reference.SCORES", scores)  # one row at a time, or all
    g, q, k, v = normal(2, 4, 5, 3, seed=1), normal(2, 4, 5, 3), normal(2, 2, 7, 3, seed=2), normal(2, 2, 7, 3, seed=3)
    for bias in (None, normal(1, 4, 5, 7), normal(2, 1, 5, 7) > 0):
        kept = 2.0 * (normal(2, 4, 5, 7, seed=4) > 0)
        found = attention_by_rows(g, q, k, v, bias=bias, kept=kept, **options)
        exact = Attention(q, k, v, bias=bias, **options)
        exact.factor = kept
        exact.output = (exact.weights * kept) @ exact.value
        expected = (exact.output, *exact.gradients(g))
        for name, x, e in zip(attention.NAMES, found, expected, strict=True):
            if name != "d_bias" or (bias is not None and bias.dtype != bool):
                np.testing.assert_allclose(x, e, rtol=1e-9, atol=1e-12, err_msg=name)


@needs_compiler
@pytest.mark.parametrize("dtype, wrong", [(np.float32, 1e-5), (np.float16, 3e-3)])
def test_a_kernel_that_is_wrong_fails(dtype, wrong, monkeypatch):
    inputs = tuple(normal(1, 1, 20, 16, dtype=dtype, seed=seed) for seed in range(4))
    assert attention.check(lambda: (inputs, {}))[0].passed
    right = attention.attention_backward

    def backward(*arrays, **options):
        d_query, d_key, d_value, d_bias = right(*arrays, **options)
        return d_query, (d_key * (1 + wrong)).astype(dtype), d_value, d_bias

    monkeypatch.setattr(attention, "attention_backward", backward)
    assert not attention.check(lambda: (inputs, {}))[0].passed


@needs_compiler
def test_a_kernel_that_gives_other_bits_the_second_time_fails(monkeypatch):
    inputs = tuple(normal(1, 1, 20, 16, seed=seed) for seed in range(4))
    right, calls = attention.attention_forward, []

    def forward(*arrays, **options):
        output, lse = right(*arrays, **options)
        calls.append(output)
        return np.nextafter(output, np.float32(9)) if len(calls) == 2 else output, lse

    monkeypatch.setattr(attention, "attention_forward", forward)
    (row,) = attention.check(lambda: (inputs, {}))
    assert not row.passed and row.note == "other bits the second time"


class Clock:
    """In place of a GPU: work takes what it is told, in the order in which it is timed."""

    def __init__(self, *seconds):
        self._seconds = iter(seconds)

    def seconds(self, work):
        work()
        return next(self._seconds)

    def free(self):
        pass


class Theirs:
    """In place of PyTorch, of which the backend `name` is there."""

    def __init__(self, name):
        self._name = name

    def attention(self, backend, *_):
        if backend != self._name:
            raise RuntimeError("No available kernel")
        return (lambda: None), (lambda: None)

    def is_out_of_memory(self, error):
        return False

    def free(self):
        pass


NUMBERS = [normal(2 * 16 * 16, seed=seed) for seed in range(4)]


@needs_compiler
@pytest.mark.parametrize(
    "dtype, rival, ours, theirs, passed",
    [
        ("float16", "flash", (1, 1), (0.76, 0.51), [True, True]),
        ("float16", "flash", (1, 1), (0.74, 0.49), [False, False]),
        ("float16", "math", (1, 1), (0.1, 0.1), [True, True]),  # it is not held to that
        ("float32", "math", (1, 1), (1.1, 0.9), [True, False]),
        ("float32", "efficient", (1, 1), (0.5, 0.5), [True, True]),
    ],
)
def test_what_is_slow_fails(dtype, rival, ours, theirs, passed):
    timing = Timing(Clock(*ours, *theirs, 9, 9), Theirs(rival), counts=True)  # plain CuPy takes 9 s
    rows = timing.rows(Case(dtype, (1, 2, 16, 16), True), NUMBERS)
    assert [row.part for row in rows] == ["forward", "backward"] and [row.passed for row in rows] == passed
    assert [speed.by_name[rival] for speed in timing.speeds] == [
        pytest.approx(4 * 2 * 16**3 / 2 * factor / seconds / 1e12)
        for factor, seconds in zip((1, 2.5), theirs, strict=True)
    ]


@needs_compiler
def test_what_is_slower_than_plain_cupy_fails_but_not_in_a_dry_run():
    case = Case("float32", (1, 2, 16, 16), False)
    assert [row.passed for row in Timing(Clock(1, 1, 2, 0.5), None, counts=True).rows(case, NUMBERS)] == [True, False]
    assert all(row.passed for row in Timing(Clock(1, 1, 2, 0.5), None, counts=False).rows(case, NUMBERS))


@needs_compiler
def test_more_memory_than_planned_fails():
    case = Case("float32", (1, 2, 16, 16), False)
    planned = 4 * 2 * 16 * 16 * 4 + 3 * 2 * 16 * 4  # output and three gradients; lse, delta, share

    def measured(taken):
        gpu = SimpleNamespace(peak_bytes=lambda work: taken, free=lambda: None)
        (row,) = attention.measure_memory(gpu, None, case, NUMBERS)
        return row.passed

    assert measured(planned) and measured(planned + 2**20)
    assert not measured(2 * (planned + 2**20))


def test_a_row_that_cannot_be_had_fails_and_the_next_is_tried(tmp_path, capsys):
    def broken(size):
        raise ValueError(f"no kernel for {size}")

    table = Report(tmp_path / "table.txt", Deadline(None))
    table.section("A table", ["x"])
    table.add("broken", broken, 3)
    table.add("fine", lambda: [Row(True, ["1"])])
    assert table.close() == 1
    assert [verdict for verdict, _ in rows_of((tmp_path / "table.txt").read_text())] == ["fail", "pass"]
    out, err = capsys.readouterr()
    assert "ValueError: no kernel for 3" in out and "Traceback" in err
    assert "2 rows: 1 pass, 1 fail, 0 skipped" in out


def test_sizes_in_words():
    assert [report.mebibytes(size) for size in (None, "no memory", 3 * 2**30)] == ["-", "no memory", "3,072.0 MiB"]
