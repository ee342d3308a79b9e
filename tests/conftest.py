"""Settings of every test run: one thread for the arithmetic, and the same examples each time."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when NumPy and PyTorch are first imported

from hypothesis import HealthCheck, settings

settings.register_profile(
    "same_every_time",
    derandomize=True,
    deadline=None,
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same_every_time")
