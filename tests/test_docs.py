"""The pages' examples run: every python block of a page, in order, in one namespace, printing what the page says."""

import re
import shutil
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


@pytest.mark.cpu_only(reason="the pages show what is printed on a CPU")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what it writes
    text = page.read_text(encoding="utf-8")
    if "EmulatedModule" in text and shutil.which("g++") is None:
        pytest.skip("g++, which compiles the page's kernels, is not installed")
    names = {"__name__": page.stem}
    for block in blocks_of(page):
        line = text[: block.start("code")].count("\n")  # so that an error names the page's own line
        exec(compile("\n" * line + block["code"], page.name, "exec"), names)
        printed = capsys.readouterr().out
        if block["printed"] is not None:
            assert _plain(printed) == _plain(block["printed"]), f"{page.name}, the block at line {line + 1}: {printed}"


def test_the_pages_are_there():
    assert {"adding-an-op", "kernels", "studying-gradients"} <= {page.stem for page in PAGES}


@pytest.mark.parametrize("name", ["adding-an-op", "studying-gradients"])
def test_blocks_that_print_say_what(name):
    """Those with a `print` in them: else nothing holds the page to what it says."""
    blocks = blocks_of(DOCS / f"{name}.md")
    assert sum(block["printed"] is not None for block in blocks) >= 4
    assert [block["code"] for block in blocks if "print(" in block["code"] and block["printed"] is None] == []
