"""Faults planted in the sources of attention for tensor cores, and whether they are found.

The sources differ in how they multiply; how tiles stream through shared memory is the same, and so are these faults.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from kernels import attention_backward, attention_forward, launch, tiles
from kernels.emulator import EmulatedModule, EmulatorError, running
from tests.kernels.emulator.compiled import WAYS
from tests.kernels.support import built_by, run

# (what stands in the source, what stands there instead)
FAULTS = {
    "no barrier before the tiles are used": ("        __syncthreads();     // and everyone's\n", ""),
    "no barrier after the tiles were used": (
        "        __syncthreads();  // everyone is done",
        "        // everyone is done",
    ),
    "a wait for one group less": ("cp_async_wait<1>()", "cp_async_wait<2>()"),
    "always the same stage": ("stage ^= 1;", ""),
    "a tile of keys too few": ("end_query + a.causal_offset)", "end_query + a.causal_offset - STREAM)"),
}
FORWARD = {  # in backward such keys are zeros: they add nothing, and their own gradients are not stored
    "keys past the last one are seen": ("return key < h.keys && key <=", "return key <="),
}
BACKWARD = {
    "queries past the last one count": ("query < queries ? lse[query] :", "query < queries + 64 ? lse[query % 8] :"),
    "rows of another stage": ("queries[stage].base[i]", "queries[0].base[i]"),
    "a tile of queries too few": (
        "max(0, first_key - a.causal_offset)",
        "max(0, first_key - a.causal_offset + STREAM)",
    ),
}


def shows(fault, backward, inputs, options, is_close):
    """Whether a planted fault shows in any order of threads: as an error, or as results that are not close.

    is_close: of (output, d_query, d_key, d_value, d_bias), the gradients None if they are not looked at.
    """

    def build(code, flags):
        assert code.count(fault[0]) == 1, f"{fault[0]!r} is in the source {code.count(fault[0])} times"
        module = EmulatedModule(code.replace(*fault), flags)
        try:
            module.get_function("attention_dq" if backward else "attention_forward")
        except EmulatorError as error:  # not the way in which it should be found
            pytest.fail(str(error))
        return module

    grad_output, *qkv = inputs
    output, lse = attention_forward(*qkv, **options)
    for order, seed, copies in WAYS:
        with built_by(build), running(order, seed, copies):
            try:
                if backward:
                    results = (output, *attention_backward(grad_output, *qkv, output, lse, **options))
                else:
                    results = (attention_forward(*qkv, **options)[0], None, None, None, None)
            except EmulatorError:
                return True
        if not is_close(results):
            return True
    return False


@contextmanager
def short_of_shared_memory(size, *, backward):
    """In it the kernels of one direction have `size` bytes less than their tiles need."""

    def short(*arguments, **options):
        found = tiles.choose_tiles(*arguments, **options)
        return replace(found, shared=found.shared - size * (options["backward"] == backward))

    with pytest.MonkeyPatch.context() as patch, built_by(EmulatedModule):
        patch.setattr(launch, "choose_tiles", short)
        yield


def bank_conflicts(inputs, change=lambda code: code, **options):
    """How many a call has, forward and backward, with its source changed."""
    modules = []

    def build(code, flags):
        modules.append(EmulatedModule(change(code), flags))
        return modules[-1]

    with built_by(build):
        run(inputs, **options)
    assert len(modules) == 2
    return sum(module.bank_conflicts for module in modules)
