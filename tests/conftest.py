"""Settings of every test run: one thread for the arithmetic, the same examples each time, and the device.

pytest                      on the CPU
pytest --on-gpu-standin     the same with tensors made on "cuda", by the stand-in for CuPy in tests/cupy_standin
pytest --on-gpu             the same on a GPU, by CuPy; tests that bring the stand-in are skipped
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy and PyTorch are first imported

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "same_every_time",
    derandomize=True,
    deadline=None,
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same_every_time")


def pytest_addoption(parser):
    parser.addoption("--on-gpu-standin", action="store_true", help='make tensors on "cuda", by a stand-in for CuPy')
    parser.addoption("--on-gpu", action="store_true", help='make tensors on "cuda", by CuPy')


def pytest_configure(config):
    """Before the test files are read, some of which make tensors then."""
    if config.getoption("--on-gpu-standin") and config.getoption("--on-gpu"):
        raise pytest.UsageError("--on-gpu-standin and --on-gpu are two devices: choose one")
    if config.getoption("--on-gpu-standin"):
        _use_standin(config)
    elif config.getoption("--on-gpu"):
        _use_gpu()


def _use_standin(config):
    import minigrad as mg
    from tests.cupy_standin import installed

    standin = installed()
    standin.__enter__()
    config.add_cleanup(lambda: standin.__exit__(None, None, None))
    mg.set_default_device("cuda")


def _use_gpu():
    import minigrad as mg
    from tests import cupy_standin

    try:
        mg.set_default_device("cuda")
    except mg.DeviceError as error:
        raise pytest.UsageError(f"--on-gpu: {error}") from None
    # What is kept of one CuPy, such as compiled kernels and what a GPU can do, would be taken for the other's.
    reason = "it brings the stand-in for CuPy, in place of the real one"
    cupy_standin.installed = lambda *args, **options: pytest.skip(reason)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--on-gpu-standin") or config.getoption("--on-gpu"):
        for item in items:
            for mark in item.iter_markers("cpu_only"):
                item.add_marker(pytest.mark.skip(reason=f"for the CPU only: {mark.kwargs['reason']}"))
