"""The house keeps its rooms: imports run one way, and importing the engine needs no GPU library and no extras."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What each room may import of the others: train -> training -> models -> nn -> minigrad.
MAY_IMPORT: dict[str, set[str]] = {
    "minigrad": set(),
    "nn": {"minigrad"},
    "models": {"nn", "minigrad"},
    "training": {"models", "nn", "minigrad"},
    "train": {"training", "minigrad"},
}


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function; `from a import b` counts as a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files_of(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py")) if (ROOT / room).is_dir() else [ROOT / f"{room}.py"]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room):
    for path in files_of(room):
        rooms = {name.partition(".")[0] for name in imported_modules(path)} & set(MAY_IMPORT)
        wrong = rooms - MAY_IMPORT[room] - {room}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("module", ["backend", "promotion", "special"])
def test_modules_of_arrays_know_no_tensors(module):
    names = imported_modules(ROOT / "minigrad" / f"{module}.py")
    below = {"minigrad.backend", "minigrad.promotion"}
    assert {n for n in names if n.startswith("minigrad") and not any(n.startswith(b) for b in below)} == set()


def test_few_know_how_gradients_flow():
    """Tensors call the walk and gradcheck tries it; operations and layers have no need to."""
    knowing = {"minigrad/__init__.py", "minigrad/gradcheck.py", "minigrad/tensor.py"}
    for path in [path for room in MAY_IMPORT for path in files_of(room)]:
        if any(name.startswith("minigrad.autograd") for name in imported_modules(path)):
            assert path.relative_to(ROOT).as_posix() in knowing


def test_importing_the_engine_loads_no_gpu_library_and_no_extra():
    code = (
        "import sys, minigrad, nn, models;"
        "print(sorted({'cupy', 'torch', 'matplotlib', 'babel', 'safetensors', 'scipy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_plan_of_the_house_names_every_file():
    plan = (ROOT / "docs" / "architecture.md").read_text().partition("```\n")[2].partition("\n```")[0]
    for room in MAY_IMPORT:
        for path in files_of(room):
            if path.name != "__init__.py":
                assert path.name in plan.split(), f"docs/architecture.md does not name {path.relative_to(ROOT)}"
