"""The architecture, checked: who imports whom, no host sync, no method named by the engine."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [*ROOT.glob("fl2fast/**/*.py"), *ROOT.glob("kernels/*.py"), *ROOT.glob("cli/*.py")]

# A package may import what stands to the right of it.
ALLOWED = {
    "fl2fast/engine": (
        *("engine", "methods.method", "models", "data", "optim", "rng", "experiment"),
        *("kernels", "tune", "errors", "interrupt"),
    ),
    "fl2fast/methods": ("methods", "models", "losses", "kernels", "plugin", "errors"),
    "fl2fast/models": ("models", "kernels", "plugin", "errors"),
    "fl2fast/data": ("data", "methods.method", "rng", "cache", "tune", "errors"),
    "kernels": ("kernels",),
}
HOST_SYNCS = {"item", "cpu", "numpy", "tolist"}
FILE_BUDGET, METHOD_BUDGET, FUNCTION_BUDGET = 350, 110, 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "fl2fast":
            found += [f"fl2fast.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return [name.removeprefix("fl2fast.") for name in found if name.startswith("fl2fast.")]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    for path in (ROOT / package).glob("*.py"):
        for name in imports(path):
            fits = any(name == a or name.startswith(f"{a}.") for a in ALLOWED[package])
            assert fits, f"{name_of(path)} imports fl2fast.{name}"


@pytest.mark.parametrize("package", ["fl2fast/engine", "fl2fast/methods", "fl2fast/models"])
def test_values_leave_the_device_in_one_place(package: str) -> None:
    """`_read_labels` reports a round; elsewhere only host tensors, which are named so, are read."""
    for path in (ROOT / package).glob("*.py"):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef) or function.name == "_read_labels":
                continue
            for node in ast.walk(function):
                call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                if call and node.func.attr in HOST_SYNCS:  # type: ignore[union-attr]
                    assert _in_report(tree, node), f"{name_of(path)}:{node.lineno} reads a tensor"


def _in_report(tree: ast.AST, node: ast.AST) -> bool:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "_read_labels":
            return any(child is node for child in ast.walk(function))
    return False


def test_the_engine_names_no_method() -> None:
    words = r"flfl|supervised|fedavg|semifl|fixmatch|fedmatch|fedcon|freematch|sacr|oracle"
    names = re.compile(words, re.IGNORECASE)
    for path in (ROOT / "fl2fast/engine").glob("*.py"):
        assert not names.search(path.read_text()), name_of(path)


def test_randomness_is_born_in_one_file() -> None:
    unkeyed = re.compile(r"torch\.(rand|randn|randperm|randint|bernoulli)\b|np\.random\.(?!Gen)")
    for path in SOURCES:
        if path.name != "rng.py":
            assert not unkeyed.search(path.read_text()), name_of(path)


def count_lines(text: str) -> int:
    """Of code: neither blank nor the file's own docstring, where a method's equations stand."""
    docstring = ast.get_docstring(ast.parse(text), clean=False) or ""
    return sum(bool(line.strip()) for line in text.replace(docstring, "").splitlines())


def test_files_and_functions_stay_small() -> None:
    for path in SOURCES:
        text = path.read_text()
        budget = METHOD_BUDGET if path.parent.name == "methods" else FILE_BUDGET
        if path.name in ("parts.py", "method.py"):  # what all methods share
            budget = FILE_BUDGET
        assert count_lines(text) <= budget, name_of(path)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno:
                length = node.end_lineno - node.lineno + 1
                assert length <= FUNCTION_BUDGET, f"{name_of(path)}: {node.name} has {length} lines"
