"""Memory: what views of one array share, and when it was last written over.

Nodes and writes are numbered in the order in which they come about. So a node's arrays are what they were if no memory
of theirs has a higher number than the node.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable
from typing import ClassVar

next_serial = itertools.count(1).__next__
changing = threading.RLock()  # two threads that use one tensor must come to one memory, and `latest` only grows
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=changing.acquire, after_in_parent=changing.release, after_in_child=changing.release)


class Memory:
    """The memory of an array.

    Attributes:
        last_write: the number of the last write to it; 0 for none.
        latest: that of the last write to any.
    """

    last_write = 0
    latest: ClassVar[int] = 0


def written(memories: Iterable[Memory]) -> None:
    """These were written over, just now."""
    with changing:
        Memory.latest = next_serial()
        for memory in memories:
            memory.last_write = Memory.latest
