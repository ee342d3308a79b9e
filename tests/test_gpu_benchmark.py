"""The benchmarks run, and the one for a GPU fails where it should. Nothing here depends on how fast this machine is."""

import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import gpu
from benchmarks.on_gpu import attention, compiling, report
from benchmarks.on_gpu.attention import CUPY, DIRECTIONS, Case, Cases, Timing
from benchmarks.on_gpu.attention_reference import attention_by_rows
from benchmarks.on_gpu.measuring import Deadline, Gpu
from benchmarks.on_gpu.report import CannotBeTried, Report, Row
from benchmarks.on_gpu.rivals import SCORES_OF_PLAIN, plain_attention
from minigrad.backend import cuda_available
from tests.cupy_standin import installed
from tests.kernels.emulator.compiled import needs_compiler
from tests.kernels.reference import Attention

ROOT = Path(__file__).parents[1]


def run(program, *arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def rows_of(text):
    """The lines of the table: (verdict, the rest)."""
    return re.findall(r"^(pass|fail|skipped) +(.*)", text, re.MULTILINE)


class Plan:
    """In place of a report: the names of rows, by what is to be done for them, which is not."""

    def __init__(self):
        self.rows = []

    def section(self, title, columns):
        pass

    def add(self, name, work, *arguments):
        is_timed = getattr(work, "__func__", None) is Timing.rows
        self.rows += [f"{name} {part}" for part in DIRECTIONS] if is_timed else [name]


def planned_rows():
    """What a dry run tries, in order."""
    plan = Plan()
    gpu.run(np, gpu.DRY, plan, None)
    return plan.rows


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
    rows, names = rows_of(table), planned_rows()
    assert {verdict for verdict, _ in rows} == {"pass"}
    assert all(words.startswith(name) for (_, words), name in zip(rows, names, strict=True))
    assert re.search(
        r"^Kernels were compiled in \d+ s, by \d+ threads\.$", table, re.MULTILINE
    )  # and no program failed
    speeds = [words.split() for _, words in rows if "forward" in words or "backward" in words]
    assert len(speeds) == sum(name.endswith(DIRECTIONS) for name in names) > 0
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
    assert f"NOT passed: for want of time {len(rows)} rows show nothing\n" in result.stdout
    assert result.returncode == 1


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
    monkeypatch.setattr("benchmarks.on_gpu.attention_reference.SCORES", scores)  # one row at a time, or all
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

    def free_bytes(self):
        return 2**30


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


@pytest.mark.parametrize("takes, runs", [(0.5, 2), (0.03, 5), (0.001, 31)])
def test_a_measurement_is_repeated_while_there_is_time(takes, runs):
    """Once to warm up, once in any case, and as often as fits into 0.1 s, but 29 times at most."""
    now, done = [0.0], []

    class Event:
        def record(self):
            self.seconds = now[0]

        def synchronize(self):
            pass

    def work():
        now[0] += takes
        done.append(takes)

    cuda = SimpleNamespace(Event=Event, get_elapsed_time=lambda a, b: 1000 * (b.seconds - a.seconds))
    assert Gpu(SimpleNamespace(cuda=cuda), 0.1).seconds(work) == pytest.approx(takes)
    assert len(done) == runs


@needs_compiler
def test_plain_attention_is_not_tried_where_its_scores_do_not_fit():
    clock = Clock(1, 1)  # for the kernels alone
    clock.free_bytes = lambda: SCORES_OF_PLAIN * 2 * 16 * 16 * 4 - 1
    timing = Timing(clock, None, counts=True)
    rows = timing.rows(Case("float32", (1, 2, 16, 16), False), NUMBERS)
    assert [(row.passed, row.cells[-1]) for row in rows] == [(True, "no memory")] * 2
    assert all(CUPY not in speed.by_name for speed in timing.speeds)


def test_plain_attention_holds_as_many_scores_as_it_says():
    inputs, scores = [normal(1, 2, 256, 4, seed=seed) for seed in range(4)], 2 * 256 * 256 * 4
    tracemalloc.start()
    try:
        forward, backward = plain_attention(inputs, False)
        forward(), backward()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert SCORES_OF_PLAIN - 0.1 < peak / scores < SCORES_OF_PLAIN + 0.1


def test_batches_far_apart_are_not_tried_where_they_do_not_fit():
    table = Gpu(SimpleNamespace(zeros=None), 0)
    table.free_bytes = lambda: 2**30
    cases = dict(Cases(table, "float16", 20, 5, 2**29).all((16,)))
    with pytest.raises(CannotBeTried, match=r"needs 2,048.0 MiB of memory, 1,024.0 MiB are free"):
        cases[f"d=16 batches {2**29:,} numbers apart"]()


@needs_compiler
def test_a_program_that_does_not_compile_stops_no_other(monkeypatch, tmp_path, capsys):
    def broken(gpu, name, dtype, shape):
        raise ValueError(f"{name} is not compiled")

    tried = []
    monkeypatch.setattr(compiling.fused, "check", broken)
    monkeypatch.setattr(compiling.attention, "check", lambda make: tried.append(make))
    with installed() as cupy:
        compiling.compile_first(Gpu(cupy, 0), Report(tmp_path / "table.txt", Deadline(None)), ["float32"], [16], [])
    names = len(compiling.fused.FUNCTIONS)
    assert len(tried) == 4
    out, err = capsys.readouterr()
    assert re.search(f"by [0-9]+ threads; {names} of {names + 4} programs failed", out) and "is not compiled" in err


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
    assert "2 rows: 1 pass, 1 fail, 0 skipped" in out and "NOT passed\n" in out


@pytest.mark.parametrize("too_late, status", [(False, 0), (True, 1)])
def test_a_row_for_which_no_time_was_left_is_no_pass_but_one_that_has_no_place_is(too_late, status, tmp_path, capsys):
    def too_large():
        raise CannotBeTried("needs 17 GiB")

    deadline = SimpleNamespace(passed=False, elapsed=219.0)
    table = Report(tmp_path / "table.txt", deadline)
    table.add("fine", lambda: [Row(True, ["1"])])
    table.add("large", too_large)
    deadline.passed = too_late
    table.add("last", lambda: [Row(True, ["1"])])
    assert table.close() == status
    out = capsys.readouterr().out
    assert re.search("^skipped +large +needs 17 GiB$", out, re.MULTILINE)
    assert out.endswith("NOT passed: for want of time 1 rows show nothing\n" if too_late else "; 219 s\nPassed\n")


def test_sizes_in_words():
    assert [report.mebibytes(size) for size in (None, "no memory", 3 * 2**30)] == ["-", "no memory", "3,072.0 MiB"]
