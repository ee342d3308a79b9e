"""Faults planted in sources, and whether they are found.

The sources of attention for tensor cores differ in how they multiply; how tiles stream through shared memory is the
same, and so are the faults here.
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


class _Faulty(EmulatedModule):
    """A module with a fault, which must compile: that it does not is no way to find the fault."""

    def get_function(self, name):
        try:
            return super().get_function(name)
        except EmulatorError as error:
            pytest.fail(str(error))


def shows(fault, call, is_close):
    """Whether a planted fault shows in any order of threads: as a kernel's error, or as results that are not close.

    fault: (what stands once in the source, what stands there instead). call: launches the kernels and returns results.
    is_close: of these results, which they must be without the fault.
    """

    def build(code, flags):
        assert code.count(fault[0]) == 1, f"{fault[0]!r} is in the source {code.count(fault[0])} times"
        return _Faulty(code.replace(*fault), flags)

    assert is_close(call())
    with built_by(build):
        for order, seed, copies in WAYS:
            with running(order, seed, copies):
                try:
                    results = call()
                except EmulatorError:
                    return True
            if not is_close(results):
                return True
    return False


def forward(inputs, options):
    """A call of attention's forward kernels: (output, None, None, None, None), for `shows`."""
    return lambda: (attention_forward(*inputs[1:], **options)[0], None, None, None, None)


def backward(inputs, options):
    """A call of its backward kernels, of what forward kernels without a fault found: (output, and the gradients)."""
    grad_output, *qkv = inputs
    output, lse = attention_forward(*qkv, **options)
    return lambda: (output, *attention_backward(grad_output, *qkv, output, lse, **options))


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
