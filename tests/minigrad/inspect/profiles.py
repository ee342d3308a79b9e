"""What tests of the profiler ask of a profile."""

import numpy as np


def times(p):
    """{operation: (calls, forward s, backward s)}, of those that took time."""
    return {r.name: (r.calls, r.forward_ms / 1000, r.backward_ms / 1000) for r in p.rows if r.ms}


def assert_adds_up(p):
    """To the same but for rounding: a clock's times are not added up in the order in which they were taken."""
    parts = [*[row.forward_ms + row.backward_ms for row in p.rows], *p.regions.values(), p.outside_ms]
    assert all(part >= 0 for part in parts)
    np.testing.assert_allclose(sum(parts), p.total_ms, rtol=1e-9)
