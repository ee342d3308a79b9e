"""Settings of every test run: one thread for the arithmetic, the same examples each time, and the device.

pytest                      on the CPU
pytest --on-gpu-standin     the same with tensors made on "cuda", by the stand-in for CuPy in tests/cupy_standin
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


def pytest_configure(config):
    """Before the test files are read, some of which make tensors then."""
    if config.getoption("--on-gpu-standin"):
        import minigrad as mg
        from tests.cupy_standin import installed

        standin = installed()
        standin.__enter__()
        config.add_cleanup(lambda: standin.__exit__(None, None, None))
        mg.set_default_device("cuda")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--on-gpu-standin"):
        for item in items:
            for mark in item.iter_markers("cpu_only"):
                item.add_marker(pytest.mark.skip(reason=f"for the CPU only: {mark.kwargs['reason']}"))
