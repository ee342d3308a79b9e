"""The pages' examples run: every python block of a page, in order, in one namespace, printing what the page says."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```\n(?P<printed>.*?)^```)?", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> list[re.Match[str]]:
    """The page's blocks of code, each with the bare block right after it: what the code prints."""
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def _plain(text: str) -> str:
    """The text with numbers to four digits, whose last digits differ between machines, and single spaces."""
    rounded = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.4g}", text)
    return re.sub(r"\s+(?=[],])", "", " ".join(rounded.split()))


PAGES = [page for page in sorted(DOCS.glob("*.md")) if blocks_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what it writes
    text = page.read_text(encoding="utf-8")
    names = {"__name__": page.stem}
    for block in blocks_of(page):
        line = text[: block.start("code")].count("\n")  # so that an error names the page's own line
        exec(compile("\n" * line + block["code"], page.name, "exec"), names)
        printed = capsys.readouterr().out
        if block["printed"] is not None:
            assert _plain(printed) == _plain(block["printed"]), f"{page.name}, the block at line {line + 1}: {printed}"


def test_the_pages_are_there():
    assert {"adding-an-op", "studying-gradients"} <= {page.stem for page in PAGES}
    printing = [block for block in blocks_of(DOCS / "adding-an-op.md") if block["printed"]]
    assert len(printing) >= 4
