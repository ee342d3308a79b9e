"""Every operation that `minigrad.ops` exports stands in the table of the test file that mirrors its own file."""

import importlib
import inspect

import pytest

from minigrad import ops

HELPERS = {"plain_key"}  # it prepares an index
OPERATIONS = {name: f for name, f in vars(ops).items() if inspect.isfunction(f) and name not in HELPERS}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_is_tested(name):
    file = OPERATIONS[name].__module__.removeprefix("minigrad.ops.")
    table = importlib.import_module(f"tests.minigrad.ops.test_{file}").CASES
    assert name in {case.name for case in table}, f"add a Case for {name} to tests/minigrad/ops/test_{file}.py"
