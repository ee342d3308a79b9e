"""ParallelLoss: a loss whose batch is split over threads, on a CPU. How parts join one graph is in `minigrad.parts`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from minigrad import Tensor
from minigrad.backend import DeviceError, is_array
from minigrad.dividing import MOST_THREADS
from minigrad.dtypes import is_floating
from minigrad.parts import computed_parts, weighted_sum
from minigrad.scalars import number


class ParallelLoss:
    """A mean loss, of which each thread computes a part of the batch, forward and backward.

        def loss_and_count(source, target):  # of a part of the batch
            logits = model(source).reshape(-1, V)
            loss = F.cross_entropy(logits, target.reshape(-1), ignore_index=PAD)  # a mean
            return loss, np.count_nonzero(target != PAD)  # over so many

        loss_of = nn.ParallelLoss(loss_and_count, threads=2)
        for source, target in batches:
            loss = loss_of(source, target)  # the mean over the whole batch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    The losses m of the parts are means over n examples, or tokens, so the whole one is Σ n m / Σ n, whatever lies in
    which part. It is a tensor like any other: gradients are added up, and seen by hooks of parameters, as a whole. They
    differ from those of one thread by rounding, and are the same bits again with as many threads. Dropout draws other
    masks with another number of threads.

    On two cores it is a few percent faster than operations that are divided (`mg.set_num_threads`) where a step takes
    some 100 ms or more, and slower where it takes a few.

    The loss is differentiated once, as the graphs of its parts are freed then: RuntimeError for a second time, with
    retain_graph=True too, and for create_graph=True. Within `loss_and_count` there are gradients of gradients as
    everywhere; hooks of what is made there see the part's gradient. While somebody watches (`mg.tracing`,
    `mg.detect_anomaly`, `mg.profile`) one thread does all the work.

    Args:
        loss_and_count: takes a part of each argument of a call; returns (loss, count): a floating Tensor without axes,
            and a number, 0 or more. It runs in several threads at once and must change nothing that they share.
        threads: how many parts there are, at most one an example: from 1 to 128. With one part `loss_and_count` is
            called as it is. More threads than the machine has cores only cost time.

    Raises ValueError for other threads.
    """

    def __init__(self, loss_and_count: Callable[..., tuple[Tensor, Any]], threads: int) -> None:
        if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"ParallelLoss: threads must be an integer from 1 to {MOST_THREADS}, got {threads!r}")
        self.loss_and_count, self.threads = loss_and_count, threads

    def __call__(self, *batch: Any) -> Tensor:
        """The mean loss of a batch, a Tensor without axes.

        Args:
            batch: arrays or Tensors whose first axes are the examples: all equally long, and split
                alike. What all parts need (masks of positions, say) reaches `loss_and_count` in another way.

        Raises TypeError or ValueError for arguments or results that are not as above, DeviceError for a loss on a GPU
        if there is more than one part, RuntimeError within `loss_and_count`; and what that raises, when all threads
        have ended.
        """
        examples = _examples(batch)
        count = min(self.threads, examples)
        if count <= 1:
            return self._result(batch)[0]
        counts = [0.0] * count

        def loss_of_part(place: int) -> Tensor:
            loss, counts[place] = self._result(slices[place])
            if loss.device != "cpu":
                raise DeviceError(f"ParallelLoss: the loss is on {loss.device}; threads are for the CPU, use one")
            return loss

        edges = [examples * place // count for place in range(count + 1)]
        slices = [[x[start:end] for x in batch] for start, end in itertools.pairwise(edges)]
        parts = computed_parts([functools.partial(loss_of_part, place) for place in range(count)])
        total = sum(counts)
        if total == 0:  # what the loss is of nothing, each part says
            return weighted_sum(parts, [1 / count] * count)
        # A mean of nothing beside others does not count, NaN or not.
        used = [(part, share / total) for part, share in zip(parts, counts, strict=True) if share]
        return weighted_sum([part for part, _ in used], [weight for _, weight in used])

    def _result(self, part: Any) -> tuple[Tensor, float]:
        result = self.loss_and_count(*part)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                "ParallelLoss: loss_and_count must return (loss, count), the mean loss and over how many examples or "
                f"tokens that is, not {type(result).__name__}"
            )
        loss, count = result[0], number("ParallelLoss: the count", result[1])
        if not isinstance(loss, Tensor) or loss.shape != () or not is_floating(loss.dtype):
            found = f"{loss.dtype} {loss.shape}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"ParallelLoss: the loss must be a floating Tensor without axes, not {found}")
        if not 0 <= count < math.inf:
            raise ValueError(f"ParallelLoss: the count must be a finite number, 0 or more, got {count}")
        return loss, float(count)


def _examples(batch: tuple[Any, ...]) -> int:
    """How long the first axes are."""
    if not batch:
        raise TypeError("ParallelLoss: give the batch, one array or more")
    for place, x in enumerate(batch):
        if not isinstance(x, Tensor) and not is_array(x):
            raise TypeError(f"ParallelLoss: argument {place} must be an array or a Tensor, not {type(x).__name__}")
    shapes = [x.shape for x in batch]
    if any(shape == () or shape[0] != shapes[0][0] for shape in shapes):
        raise ValueError(
            "ParallelLoss: the first axes of the arguments must be equally long, as they are the examples; got shapes "
            f"{', '.join(map(str, shapes))}. What all parts need belongs into the function's closure"
        )
    return shapes[0][0]
