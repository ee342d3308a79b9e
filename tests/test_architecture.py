"""The house keeps its rooms: imports run one way, and importing the engine needs no GPU library and no extras."""

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What each room may import of the others: train -> training -> models -> nn -> minigrad, and nn -> kernels.
MAY_IMPORT: dict[str, set[str]] = {
    "minigrad": set(),
    "kernels": {"minigrad"},
    "nn": {"minigrad", "kernels"},
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


@pytest.mark.parametrize("module", ["backend", "dtypes", "promotion", "random", "scalars", "special"])
def test_modules_of_arrays_know_no_tensors(module):
    names = imported_modules(ROOT / "minigrad" / f"{module}.py")
    below = {"minigrad.backend", "minigrad.dtypes", "minigrad.promotion"}
    assert {n for n in names if n.startswith("minigrad") and not any(n.startswith(b) for b in below)} == set()


def test_kernels_know_arrays_only():
    for path in files_of("kernels"):
        names = {name for name in imported_modules(path) if name.partition(".")[0] == "minigrad"}
        assert all(name.startswith("minigrad.backend") for name in names), path


def test_few_know_how_gradients_flow():
    """Tensors call the walk and gradcheck tries it; operations and layers have no need to."""
    knowing = {
        "minigrad/__init__.py",
        "minigrad/checkpoint.py",
        "minigrad/gradcheck.py",
        "minigrad/parts.py",
        "minigrad/tensor.py",
        "minigrad/transforms.py",
    }
    for path in [path for room in MAY_IMPORT for path in files_of(room)]:
        if any(name.startswith("minigrad.autograd") for name in imported_modules(path)):
            assert path.relative_to(ROOT).as_posix() in knowing


def test_importing_the_engine_loads_no_gpu_library_and_no_extra():
    code = (
        "import sys, minigrad, kernels, nn, models;"
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


def code_lines(path: Path) -> int:
    """The lines of a file that hold code: comments, docstrings and blank lines are not counted."""
    source = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    words = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {n for word in words if word.type not in NO_CODE for n in range(word.start[0], word.end[0] + 1)}
    return len(lines - docstrings)


NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def test_code_is_counted_without_comments_docstrings_and_blank_lines(tmp_path):
    path = tmp_path / "example.py"
    path.write_text('"""One\nTwo."""\n\nx = (1,\n     2)  # three\n\n\ndef f():\n    """4."""\n    return """a\nb"""\n')
    assert code_lines(path) == 5


def test_the_core_stays_small_enough_to_be_read():
    """What a tensor is, how operations are recorded and how gradients flow: under 1,000 lines, promised to readers.

    docs/decisions.md says what is not counted: what a tensor inherits from other files, promotion, random numbers.
    """
    core = [ROOT / "minigrad" / f"{name}.py" for name in ("tensor", "operation", "autograd", "backend")]
    assert sum(map(code_lines, core)) < 1000
