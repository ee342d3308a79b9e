"""The split into training and held-out examples: by a hash of what must stay unseen, so that no list is needed.

What is hashed is the task's choice (a source text, a calendar day); only the rule is here.
"""

import hashlib

HELD_OUT_EVERY = 10
"""One key in this many is held out."""


def split_hash(key: str) -> int:
    """A number of 64 bits that depends on `key` alone: the same in every process and on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def is_held_out(key: str) -> bool:
    """Whether `key` belongs to the held-out tenth."""
    return split_hash(key) % HELD_OUT_EVERY == 0
