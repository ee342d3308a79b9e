"""`pytest --on-gpu` runs tests on a GPU. Here the stand-in for CuPy is in the real one's place."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minigrad.backend import cuda_available

ROOT = Path(__file__).parents[1]

# A plugin that makes the machine one with a GPU, before tests/conftest.py looks for it.
MACHINE = """
from tests.cupy_standin import installed

cupy = installed()
cupy.__enter__()
"""
TESTS = """
import pytest
import minigrad as mg
from tests.cupy_standin import installed

def test_tensors_are_on_the_gpu():
    assert mg.ones(2).device == "cuda:0"

def test_with_a_standin():
    with installed(devices=2):
        assert False

@pytest.mark.cpu_only(reason="it says so")
def test_for_the_cpu():
    assert False
"""


def run(tmp_path, *options):
    (tmp_path / "machine.py").write_text(MACHINE)
    (tmp_path / "test_it.py").write_text(TESTS)
    paths = os.pathsep.join(map(str, (ROOT, tmp_path)))
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-c", "pyproject.toml"]
    command += ["--rootdir", str(ROOT), "--confcutdir", str(ROOT), "-p", "tests.conftest", *options]
    command.append(str(tmp_path / "test_it.py"))
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)


def test_tensors_are_made_there_and_tests_with_a_standin_are_skipped(tmp_path):
    result = run(tmp_path, "-p", "machine", "--on-gpu")
    assert result.returncode == 0 and "1 passed, 2 skipped" in result.stdout, result.stdout + result.stderr
    assert "it brings the stand-in for CuPy, in place of the real one" in result.stdout
    assert "for the CPU only: it says so" in result.stdout


@pytest.mark.skipif(cuda_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    result = run(tmp_path, "--on-gpu")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert re.fullmatch(r"ERROR: --on-gpu: device 'cuda'.*\n+", result.stderr)


def test_it_is_one_or_the_other(tmp_path):
    result = run(tmp_path, "--on-gpu", "--on-gpu-standin")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--on-gpu-standin and --on-gpu are two devices: choose one" in result.stderr
