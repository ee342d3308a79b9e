"""pyproject.toml names every package, so that an installed minigrad has all its parts."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_is_named():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    tops = {name.partition(".")[0] for name in named}
    found = [path.parent.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("__init__.py")]
    assert sorted(named) == sorted(".".join(path.parts) for path in found)


def test_the_sources_of_kernels_are_packaged():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    sources = [path for path in (ROOT / "kernels").rglob("*") if path.suffix in {".cu", ".cuh", ".h", ".cpp"}]
    assert sources
    for path in sources:
        package = ".".join(path.parent.relative_to(ROOT).parts)
        assert any(fnmatch(path.name, pattern) for pattern in data[package]), path
