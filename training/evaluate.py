"""What a trained model answers, how often it is right, and where it looks while it answers. Prints nothing."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

import minigrad as mg
from models import Transformer, beam_decode, greedy_decode
from training.tasks.base import BOS, EOS, Example, Task

BATCH = 250
"""Sources that are decoded at once: enough to spread Python's share of a step, few enough to stay in the caches."""


def answers(model: Transformer, task: Task, sources: Sequence[str], beam: int = 1) -> list[str]:
    """The model's answer to each source, by greedy decoding or with `beam` beams."""
    longest = task.max_target_length + 1  # with EOS
    texts: list[str] = []
    for start in range(0, len(sources), BATCH):
        source = task.encode_sources(sources[start : start + BATCH])  # (B, N_s)
        if beam == 1:
            ids = greedy_decode(model, source, BOS, EOS, longest)  # (B, N <= longest)
        else:
            ids = beam_decode(model, source, BOS, EOS, longest, beam_size=beam)
        texts += [task.target_vocabulary.decode(row) for row in ids.tolist()]
    return texts


def count_right(examples: Sequence[Example], given: Sequence[str]) -> int:
    """How many of the examples have an answer that is right in every character."""
    return sum(example.target == answer for example, answer in zip(examples, given, strict=True))


def exact_match_by_group(examples: Sequence[Example], given: Sequence[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """(right, all) for each group that examples name, such as ("language", "de"): kinds with few values first."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for example, answer in zip(examples, given, strict=True):
        for group in example.groups.items():
            right, total = counts.get(group, (0, 0))
            counts[group] = (right + (example.target == answer), total + 1)
    sizes = Counter(kind for kind, _ in counts)
    return {group: counts[group] for group in sorted(counts, key=lambda group: (sizes[group[0]], group))}


def cross_attention(model: Transformer, task: Task, source: str, answer: str) -> dict[str, np.ndarray]:
    """Where each output looks in the source: weights (H, N_q, N_k) by module path.

    Row i is the attention with which symbol i of the answer was chosen; then comes a row for its EOS, unless the answer
    is so long that decoding stopped before it. The columns are the source's symbols and its EOS: N_k = len(source) + 1.
    """
    source_ids, target_ids = task.batch([Example(source, answer)])
    read = target_ids[:, : min(len(answer), task.max_target_length) + 1]  # BOS and the answer, (1, N_q)
    mode = model.training
    model.eval()
    with mg.no_grad():
        _, weights = model(source_ids, read, need_weights=True)
    model.train(mode)
    return {path: w.numpy()[0] for path, w in weights.items() if path.endswith(".multihead_attn")}
