"""The training benchmark runs, its engines compute the same, and what is wrong is said. No test looks at a time."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import generation, scaling, train_step
from benchmarks.engines import by_hand, command, floor, in_minigrad, numpy_style, worker
from benchmarks.engines.measuring import Measured, NotTheSame, check_results, steps_of_a_block, take_turns
from benchmarks.engines.processes import Worker, WorkerError
from benchmarks.engines.sizes import ANSWER_LENGTH, SIZES, NotInstalled, Workload, checksum
from benchmarks.engines.tables import table
from minigrad.ops import linalg
from models import greedy_decode
from tests.support import torch_or_skip
from training.tasks.base import BOS, EOS

pytestmark = pytest.mark.cpu_only(reason="it is a benchmark of CPUs")

ROOT = Path(__file__).parents[1]
SHORT = ("--sizes", "tiny", "--rounds", "1", "--block", "0.01", "--threads", "1")


def run(*arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / "train_step.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(params=["tiny", "dates"])
def workload(request, tmp_path):
    if request.param == "dates":
        pytest.importorskip("babel", reason="babel, which writes the dates, is not installed")
    return saved(SIZES[request.param], tmp_path / "workload.npz")


def saved(size, path):
    workload = Workload(path)
    workload.save(size, in_minigrad.make(size).state_dict(), in_minigrad.draw(size))
    return workload


def losses_of(engine, workload, steps):
    step = engine.build(workload, 1)
    return [float(step()) for _ in range(steps)]


# ---- the command -----------------------------------------------------------------------------------------------------


def test_it_prints_a_line_for_each_engine_and_writes_all_to_a_file(tmp_path):
    result = run(*SHORT, "--engines", "minigrad,parallel,floor", "--json", tmp_path / "found.json")
    assert result.returncode == 0, result.stdout + result.stderr
    printed, _, legend = result.stdout.strip().rpartition("\n\n")
    assert legend.startswith("Ratios, and multiples of the faster floor, are medians over rounds")
    title, _, heads, *lines = printed.split("\n")
    assert title == "tiny: GPT, V=32, N=16, D=32, 2 heads, 2 layers, batch 16, AdamW; threads: 1, rounds: 1"
    assert re.sub(" +", " ", heads).strip() == "ms/step minigrad / it parallel / it x floor peak MiB with"
    assert [line.split()[0] for line in lines] == ["minigrad", "parallel", "floor-blas", "floor-divided"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["threads"], found["rounds"], list(found["results"])) == (1, 1, ["tiny"])
    assert found["machine"] == command.machine() and found["machine"]["numpy"] == np.__version__
    for engine, line in zip(found["results"]["tiny"], lines, strict=True):
        (seconds,) = engine["seconds"]
        assert line.split()[:2] == [engine["name"], f"{seconds * 1e3:.2f}"] and seconds > 0


def test_a_size_of_which_no_engine_measures_anything_is_a_failure():
    pytest.importorskip("babel", reason="babel, which writes the dates, is not installed")
    result = run("--sizes", "dates", "--engines", "by-hand", "--rounds", "1", "--threads", "1")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "by-hand is left out: by-hand is written for the GPT alone" in result.stdout
    assert "dates was not measured: no engine was there" in result.stdout and "ms/step" not in result.stdout


def test_pytorch_has_a_line():
    torch = torch_or_skip()
    result = run(*SHORT, "--engines", "minigrad,torch")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(rf"^torch .* torch {re.escape(torch.__version__)}$", result.stdout, re.MULTILINE)


def test_an_engine_that_is_not_installed_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "tinygrad.py").write_text("raise ModuleNotFoundError('gone', name='tinygrad')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = run(*SHORT, "--engines", "tinygrad,floor")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\ntinygrad is left out: tinygrad is not installed: pip install tinygrad\n" in result.stdout


# ---- the engines -----------------------------------------------------------------------------------------------------


def test_minigrads_losses_are_those_of_float64(workload):
    parameters = {name: values.astype(np.float64) for name, values in workload.parameters()}
    loss = numpy_style.loss_of(np, workload.size)
    batches = [numpy_style.prepared(workload.size, batch, parameters) for batch in workload.batches()]
    model = in_minigrad.Training(workload)
    for batch in batches:
        expected = loss(parameters, *batch)
        assert expected.dtype == np.float64
        assert float(model.loss_of(*next(model.batches))) == pytest.approx(expected, rel=1e-6)


def test_pytorchs_losses_are_minigrads(workload):
    torch_or_skip()
    from benchmarks.engines import in_pytorch

    ours = losses_of(in_minigrad, workload, 8)
    assert losses_of(in_pytorch, workload, 8) == pytest.approx(ours, rel=1e-4)
    assert len(set(ours)) == 8


def test_half_batches_have_the_same_losses(workload):
    from benchmarks.engines import in_parallel

    step = in_parallel.build(workload, 2)
    assert [float(step()) for _ in range(4)] == pytest.approx(losses_of(in_minigrad, workload, 4), rel=1e-4)


@pytest.mark.parametrize(("size", "steps"), [("tiny", 8), ("nanogpt-cpu", 2)])
def test_by_hand_the_same_is_computed(size, steps, tmp_path):
    workload = saved(SIZES[size], tmp_path / "workload.npz")
    assert losses_of(by_hand, workload, steps) == losses_of(in_minigrad, workload, steps)


def test_by_hand_there_is_a_gpt_alone():
    with pytest.raises(NotInstalled, match="by-hand is written for the GPT alone"):
        by_hand.build(SimpleNamespace(size=SIZES["dates"]), 1)


@pytest.mark.parametrize("build", [floor.build, floor.build_divided])
def test_a_floors_step_has_all_products_of_its_batch(build, workload, monkeypatch):
    multiplied = []

    def times(a, b, out=None):
        multiplied.append((a.shape, b.shape))

    monkeypatch.setattr(np, "matmul", times)
    monkeypatch.setattr(linalg, "times", times)
    step = build(workload, 1)
    sizes = [len(multiplied) for _ in range(2 * workload.size.batches) if step() is None]
    assert len(set(np.diff([0, *sizes]))) == 1
    if workload.size.name == "tiny":
        assert multiplied == 2 * floor.of_gpt(workload.size)


def test_the_faster_of_the_two_floors_counts():
    results = [
        Measured("minigrad", "", None, [6.0, 6.0]),
        Measured("floor-blas", "", None, [3.0, 3.0]),
        Measured("floor-divided", "", None, [2.0, 2.0]),
    ]
    heads, rows = train_step.lines(results)
    assert [row[heads.index("x floor")] for row in rows] == ["3.00", "1.50", "1.00"]
    assert [row[heads.index("x floor")] for row in train_step.lines(results[:2])[1]] == ["2.00", "1.00"]


def test_the_floor_has_all_products():
    """Per token and layer 12 D² numbers in the matrices, and attention's N D, each multiplied twice forward."""
    size = SIZES["nanogpt-cpu"]
    tokens, width = size.batch * size.length, size.d_model
    matrices = tokens * (size.layers * 12 * width**2 + width * size.vocabulary)
    attention = tokens * size.layers * 2 * size.length * width
    assert floor.multiplications(size) == 3 * (matrices + attention)


@pytest.mark.parametrize("engine", ["floor", "numpy_style", "in_pytorch"])
def test_others_run_without_minigrad_which_sets_the_allocator(engine):
    if engine == "in_pytorch":
        torch_or_skip()
    code = f"import sys, benchmarks.engines.{engine}; print('minigrad' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


# ---- processes and numbers -------------------------------------------------------------------------------------------


def test_a_process_answers(tmp_path):
    with Worker("floor-blas", saved(SIZES["tiny"], tmp_path / "tiny.npz").path, 1) as process:
        assert process.ready() == f"numpy {np.__version__}"
        assert process.results(3) is None and process.seconds(3) > 0 and process.peak_bytes() is not None


def test_what_is_computed_later_is_waited_for_before_and_after():
    """A step may only queue its work, as in JAX: then the warm-up's must not be left to the steps that are timed."""
    queued, waited = [], []

    class Later:
        def __float__(self):
            waited.append(len(queued))  # all so far is computed
            return 1.0

    def step():
        queued.append(None)
        return Later()

    assert worker.run(step, 5) > 0
    assert waited[:-1] == list(range(1, len(queued) - 4)) and waited[-1] == len(queued)


def test_a_slow_step_is_not_warmed_up(monkeypatch):
    steps = []
    monkeypatch.setattr(worker, "SLOW", -1.0)
    assert worker.run(lambda: steps.append(None), 1) > 0 and len(steps) == 1
    worker.run(lambda: steps.append(None), 2)
    assert len(steps) > 3


def test_a_process_that_fails_says_why(tmp_path):
    with Worker("minigrad", tmp_path / "none.npz", 1) as process:
        for ask in (process.ready, process.peak_bytes):
            with pytest.raises(WorkerError, match=r"^minigrad: FileNotFoundError: .*none\.npz'$"):
                ask()


def answering(engine, results):
    return SimpleNamespace(engine=engine, results=lambda steps: results[:steps] if results else None)


def test_other_losses_are_refused():
    right = [answering("floor", None), answering("minigrad", [2.0, 1.0, 9.0]), answering("torch", [2.0002, 1.0, 8.0])]
    check_results(right, 2)
    for wrong in ([2.002, 1.0], [2.0, float("nan")]):
        with pytest.raises(NotTheSame, match=r"^jax: the first steps give \[2\.0.*they must give \[2\.0, 1\.0\]$"):
            check_results([*right, answering("jax", wrong)], 2)


def test_engines_take_turns_there_and_back():
    asked = []

    def made(name):
        def seconds(steps):
            asked.append(name)
            return 0.1 * steps

        return SimpleNamespace(seconds=seconds, peak_bytes=lambda: 7)

    measured = [Measured(name, "") for name in "abc"]
    take_turns([(made(result.name), result) for result in measured], 3, 0.01, 1)
    assert "".join(asked[3:]) == "abccbaabc"
    assert all(result.seconds == pytest.approx([0.1] * 3) and result.peak_bytes == 7 for result in measured)


def test_a_slow_engine_takes_fewer_turns():
    slow = SimpleNamespace(seconds=lambda steps: 25.0 * steps, peak_bytes=lambda: 7)
    quick = SimpleNamespace(seconds=lambda steps: 0.1 * steps, peak_bytes=lambda: 7)
    ours, other = Measured("minigrad", ""), Measured("autograd", "")
    take_turns([(quick, ours), (slow, other)], 4, 0.01, 1)
    assert (len(ours.seconds), len(other.seconds)) == (4, 3)
    assert ours.ratios_to(other) == pytest.approx((0.004,) * 3)


def test_a_block_ends_with_the_last_batch():
    quick = SimpleNamespace(seconds=lambda steps: steps * 0.01)
    assert [steps_of_a_block(quick, 0.5, cycle) for cycle in (1, 4)] == [50, 48]
    assert steps_of_a_block(SimpleNamespace(seconds=lambda steps: steps * 9.0), 0.5, 4) == 4


def test_a_ratio_is_of_the_times_of_one_round():
    ours, other = Measured("minigrad", "", 2**20, [1.0, 4.0, 2.0]), Measured("torch", "", None, [2.0, 2.0, 2.0])
    assert ours.ratios_to(other) == (0.75, 1.0, 1.5)
    assert Measured("x", "", None, [3.0]).ratios_to(Measured("y", "", None, [2.0])) == (1.5, 1.5, 1.5)
    assert train_step.lines([ours, other])[1] == [
        ["minigrad", "2000.00", "1", "-", "1.0", ""],
        ["torch", "2000.00", "1.00 (0.75-1.50)", "-", "-", ""],
    ]


def test_tables():
    heads, rows = ["", "ms"], [["minigrad", "1.25"], ["torch", "10.00"]]
    assert table(heads, rows) == "             ms\nminigrad   1.25\ntorch     10.00"
    assert table(heads, rows, markdown=True) == (
        "|          |    ms |\n| -------- | ----: |\n| minigrad |  1.25 |\n| torch    | 10.00 |"
    )


def test_a_size_that_fails_leaves_the_others(monkeypatch, capsys):
    def measure(workload, *others):
        if workload.size.name == "tiny":
            raise NotTheSame("torch: the losses")
        return [Measured("minigrad", "numpy 2", 0, [1.0])]

    monkeypatch.setattr(train_step, "measure", measure)
    monkeypatch.setattr(command, "take_cores", lambda count: None)
    assert train_step.main(["--sizes", "tiny,mid"]) == 1
    assert "tiny was not measured: torch: the losses\n" in capsys.readouterr().out
    assert train_step.main(["--sizes", "mid"]) == 0


# ---- generation and scaling ------------------------------------------------------------------------------------------


@pytest.fixture
def full_length(tmp_path):
    """The dates model whose answers do not end early, and batches of 8."""
    pytest.importorskip("babel", reason="babel, which writes the dates, is not installed")
    return generation.prepare(8, tmp_path / "workload.npz")


def test_answers_have_the_length_of_a_date(full_length):
    answers = greedy_decode(in_minigrad.load(full_length), full_length.batches()[0][0], BOS, EOS, ANSWER_LENGTH)
    assert answers.shape == (8, ANSWER_LENGTH) and (answers > EOS).all()


@pytest.mark.parametrize("ends", [False, True])
def test_pytorchs_answers_are_minigrads(ends, full_length, tmp_path):
    torch_or_skip()
    from benchmarks.engines import in_pytorch

    if ends:  # after a number of symbols that depends on the source
        parameters = dict(full_length.parameters())
        parameters["generator.bias"][EOS] = 0.5
        workload = Workload(tmp_path / "ending.npz")
        workload.save(full_length.size, parameters, full_length.batches())
    else:
        workload = full_length
    source = workload.batches()[0][0]
    ours = greedy_decode(in_minigrad.load(workload), source, BOS, EOS, ANSWER_LENGTH)
    model, torch = in_pytorch.dates_model(workload), in_pytorch.torch
    theirs = in_pytorch.greedy_decode(model, torch.tensor(source), ANSWER_LENGTH).numpy()
    np.testing.assert_array_equal(theirs[:, : ours.shape[1]], ours)
    assert not theirs[:, ours.shape[1] :].any()
    assert len(set(np.count_nonzero(ours, axis=1))) == (3 if ends else 1)
    first, second = (engine.build_decoding(workload, 1)() for engine in (in_minigrad, in_pytorch))
    assert first == second


def test_a_checksum_sees_the_order():
    assert len({checksum(np.array(rows)) for rows in ([[3, 4]], [[4, 3]], [[3], [4]], [[3, 5]])}) == 4
    assert checksum(np.array([[3, 4], [5, 0]])) == checksum(np.array([[3, 4, 0], [5, 0, 0]]))


def test_generation_has_a_line_for_each_batch_and_engine(monkeypatch, capsys):
    monkeypatch.setattr(command, "take_cores", lambda count: None)
    monkeypatch.setattr(
        generation, "measure", lambda *_, **__: [Measured("minigrad", "", 0, [0.5]), Measured("torch", "", 0, [0.25])]
    )
    pytest.importorskip("babel", reason="babel, which writes the dates, is not installed")
    assert generation.main(["--markdown"]) == 0
    rows = [re.split(r" *\| *", line)[1:-1] for line in capsys.readouterr().out.strip().split("\n")[4:]]
    assert [row[:4] for row in rows[:2]] == [["1", "minigrad", "2", "1"], ["1", "torch", "4", "0.50 (0.50-0.50)"]]
    assert [row[0] for row in rows] == ["1", "1", "32", "32", "128", "128"]


def test_exponents():
    assert scaling.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    depth = next(sweep for sweep in scaling.SWEEPS if sweep.field == "layers")
    rows = scaling.lines(depth, [Measured(str(n), "", 2**20, [n / 1e3]) for n in depth.values])
    assert [row[:3] for row in rows] == [
        ["1", "1.00", ""], *([str(n), f"{n}.00", "1.00"] for n in (2, 4, 8, 16)), ["all", "", "1.00"]
    ]  # fmt: skip
    assert all(0.95 < float(row[3]) <= 1 for row in rows[1:])
    for sweep in scaling.SWEEPS:
        assert scaling.BASE in sweep.sizes


def test_scaling_draws_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "take_cores", lambda count: None)
    monkeypatch.setattr(
        scaling, "measure", lambda sweep, *_: [Measured(str(value), "", 0, [value]) for value in sweep.values]
    )
    assert scaling.main(["--out", str(tmp_path)]) == 0
    assert list(json.loads((tmp_path / "scaling.json").read_text())["results"]) == [
        "length",
        "d_model",
        "layers",
        "batch",
    ]
    if "There is no plot" not in capsys.readouterr().out:
        assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_measures_each_size(monkeypatch):
    sweep = scaling.Sweep("layers", "layers", (1, 2))
    monkeypatch.setattr(scaling, "BASE", SIZES["tiny"])
    one, two = scaling.measure(sweep, 1, 1, 0.01)
    assert (one.name, two.name) == ("1", "2") and one.seconds[0] > 0 and len(two.seconds) == 1
