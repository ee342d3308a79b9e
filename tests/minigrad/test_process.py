"""Settings of the process: freed memory stays, in all threads; BLAS takes one thread, waits briefly. All can be off."""

import os
import subprocess
import sys

import numpy as np
import pytest

from minigrad import process

pytestmark = pytest.mark.cpu_only(reason="it is about processes of NumPy")

FAULTS = """
import resource, sys, threading
import minigrad
import numpy as np

def work():  # 90 MiB: more than one of the heaps that glibc gives threads. NumPy asks for larger pages from 4 MiB on.
    arrays = [np.ones(3 << 20, np.uint8) for _ in range(30)]

def main():
    for _ in range(3):
        work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        work()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if sys.argv[1] == "main":
    main()
else:
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
"""
PAGES = 5 * 90 * 256
"""How many pages of 4 KiB the five rounds write to."""


def run(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc alone is set")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_freed_memory_is_kept_unless_told_otherwise(where):
    assert int(run(FAULTS, where)) < PAGES / 20
    assert int(run(FAULTS, where, MINIGRAD_KEEP_MEMORY="0")) > PAGES / 10


THREADS = "import minigrad.process; print(minigrad.process.blas_threads())"


def test_blas_takes_one_thread_unless_told_otherwise():
    if process.blas_threads() is None:
        pytest.skip("NumPy's BLAS is none that can be asked")
    assert int(run(THREADS, OPENBLAS_NUM_THREADS="2")) == 1
    assert int(run(THREADS, OPENBLAS_NUM_THREADS="2", MINIGRAD_SET_BLAS_THREADS="0")) == min(2, os.cpu_count() or 1)


WAITS = "import os, minigrad; print(minigrad.process.BLAS_WAITS_BRIEFLY, os.environ.get('OPENBLAS_THREAD_TIMEOUT'))"


@pytest.mark.parametrize(
    ("code", "environment", "expected"),
    [
        (WAITS, {}, "True None"),
        (f"import numpy, {WAITS.removeprefix('import ')}", {}, "False None"),  # it has read the setting by then
        (f"import numpy, {WAITS.removeprefix('import ')}", {"OPENBLAS_THREAD_TIMEOUT": "18"}, "True 18"),
        (WAITS, {"OPENBLAS_THREAD_TIMEOUT": "26"}, "False 26"),
        (WAITS, {"OPENBLAS_THREAD_TIMEOUT": "0"}, "False 0"),  # which OpenBLAS takes for not set
        (WAITS, {"MINIGRAD_SET_BLAS_THREADS": "0"}, "False None"),
    ],
)
def test_blas_waits_briefly_if_numpy_is_imported_later(code, environment, expected):
    if process.blas_threads() is None:
        pytest.skip("NumPy's BLAS is none that can be asked")
    clean = {name: "" for name in os.environ if name.startswith(("OPENBLAS", "MINIGRAD_SET"))}
    kept = {name: value for name, value in os.environ.items() if name not in clean}
    done = subprocess.run([sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True)
    assert done.stdout.strip() == expected, done.stderr


MIDDLING = """
import minigrad as mg
import numpy as np
mg.set_num_threads(2)
from minigrad.ops import linalg
rng = np.random.default_rng(0)
x, y = [rng.standard_normal(shape).astype(np.float32) for shape in ((300, 200), (200, 300))]
asked = []
multiply = linalg.multiply_by_blas
linalg.multiply_by_blas = lambda *args: asked.append(args[-1]) or multiply(*args)
value = mg.Tensor(x) @ mg.Tensor(y)
same = (mg.Tensor(x) @ mg.Tensor(y)).numpy().tobytes() == value.numpy().tobytes()
error = abs(value.numpy() - x.astype(float) @ y.astype(float)).max()
small = mg.Tensor(x[:30, :20]) @ mg.Tensor(y[:20, :30])
with mg.dividing.undivided():
    mg.Tensor(x) @ mg.Tensor(y)
print(asked, same, error < 1e-4, mg.process.blas_threads())
"""


def test_middling_products_are_left_to_blas_threads_that_wait_briefly():
    if process.blas_threads() is None:
        pytest.skip("NumPy's BLAS is none that can be asked")
    assert run(MIDDLING, OPENBLAS_THREAD_TIMEOUT="19", MINIGRAD_SET_BLAS_THREADS="1").strip() == "[2, 2] True True 1"


FORKS = """
import os, threading
import minigrad as mg
import numpy as np
mg.set_num_threads(2)
x = mg.Tensor(np.ones((300, 300), np.float32))

def multiply():
    while True:
        x @ x

threading.Thread(target=multiply, daemon=True).start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        x @ x
        os._exit(0)
    os.waitpid(child, 0)
print("forked")
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_another_thread_multiplies():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert "forked" in done.stdout, done.stderr


def test_after_an_error_blas_takes_one_thread_again():
    if process.blas_threads() is None:
        pytest.skip("NumPy's BLAS is none that can be asked")
    with pytest.raises(ValueError, match="matmul"):
        process.multiply_by_blas(np.ones((2, 3)), np.ones((3, 4)), np.ones((2, 5)), 2)
    assert process.blas_threads() == 1


@pytest.mark.parametrize("first", ["minigrad", "nn", "nn.functional", "nn.optim", "models"])
def test_whatever_is_imported_first_comes_before_numpy(first):
    if process.blas_threads() is None:
        pytest.skip("NumPy's BLAS is none that can be asked")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS", "MINIGRAD_SET"))}
    code = f"import {first}, minigrad; print(minigrad.process.BLAS_WAITS_BRIEFLY)"
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


def test_another_blas_is_left_alone(monkeypatch):
    monkeypatch.setattr(process, "_openblas", None)
    process.put_blas_on_one_thread()
    assert process.blas_threads() is None


def test_the_openblas_of_numpys_wheels_is_found():
    name = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    if name != "scipy-openblas" or sys.platform == "win32":
        pytest.skip(f"NumPy uses {name}")
    assert process.blas_threads() >= 1
