"""The report at the end of a run: exact match on unseen examples, sample answers, attention, pictures."""

from training import plots, text
from training.evaluate import answers, count_right, cross_attention, exact_match_by_group
from training.files import explain
from training.run import Run
from training.settings import typed
from training.trainer import Trainer

SAMPLES = 8
WIDEST_MAP = 35
"""Symbols of a source whose attention map fits a terminal of 80 columns."""


def print_report(trainer: Trainer, run: Run) -> None:
    """Evaluate the test examples, print what came out, and draw pictures if that is possible."""
    task, settings = trainer.task, trainer.settings
    examples = trainer.test_examples
    given = answers(trainer.model, task, [e.source for e in examples], settings.beam)
    decoding = "greedy decoding" if settings.beam == 1 else f"{settings.beam} beams"
    share = text.share(count_right(examples, given), len(examples)).strip()
    print(f"\nexact match on {len(examples)} unseen examples: {share} ({decoding})")
    groups = exact_match_by_group(examples, given)
    if groups:
        print(text.group_table(groups))

    print("\nthe first of them:")
    print(text.sample_table(examples[:SAMPLES], given[:SAMPLES]))

    shown = next((i for i, example in enumerate(examples) if len(example.source) <= WIDEST_MAP), 0)
    source, answer = examples[shown].source, given[shown]
    weights = cross_attention(trainer.model, task, source, answer)
    print("\n" + text.attention_map(weights, source, answer))

    try:
        plots.draw_curves(run.folder / "curves.png", trainer.history)
        plots.draw_attention(run.folder / "attention.png", weights, source, answer)
    except plots.PlotsMissing as hint:
        print(f"\n{hint}")
    except OSError as error:
        print(f"\nno pictures: {explain(error)}")
    print(f"\nin {run.folder}: {', '.join(sorted(path.name for path in run.folder.iterdir()))}")
    dash = ["--"] if source.startswith("-") else []
    print(f"ask it: {typed('--answer', run.folder, *dash, source)}")
