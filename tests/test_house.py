"""The house keeps its shape: rules and tests name each other, imports point down, pure files are pure, files are short.

Each check is a function from files to a list of faults, so that it can be tried on a broken example too.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tallymark"
MAX_FILE_LINES = 400  # records is a catalogue; barrier and history each read best as one page
MAX_FUNCTION_LINES = 70

LATE = ("aiobotocore", "aiohttp", "boto3", "botocore", "fsspec", "gcsfs", "pyarrow", "rich", "s3fs")
"""What `import tallymark` must not load."""

PURE = ("barrier.py", "history.py")
PURE_IMPORTS = {
    "__future__", "bisect", "collections", "collections.abc", "dataclasses", "enum", "functools", "heapq", "itertools",
    "math", "operator", "re", "types", "typing", "msgspec",
    "tallymark.barrier", "tallymark.errors", "tallymark.history", "tallymark.layout", "tallymark.records",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}


# ---- rules and tests ------------------------------------------------------------------------------------------------


def ids_in_spec(text: str) -> list[str]:
    """The numbers of all rule headings: `### J3. An entry carries ...`."""
    return re.findall(r"^### ([A-Z][1-9][0-9]*)\. \S", text, flags=re.MULTILINE)


def ids_cited(text: str, where: str) -> Iterator[str]:
    """Every id in a call of `pytest.mark.rule(...)`; an argument that is no string literal is an error."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "rule"):
            continue
        if ast.unparse(node.func.value) not in ("pytest.mark", "mark"):
            continue
        assert node.args and not node.keywords, f"{where}:{node.lineno}: a rule marker without a rule"
        for argument in node.args:
            assert isinstance(argument, ast.Constant) and isinstance(argument.value, str), (
                f"{where}:{node.lineno}: write rule ids as plain strings, so that they can be found"
            )
            yield argument.value


@cache
def spec_ids() -> tuple[str, ...]:
    return tuple(i for page in sorted((ROOT / "docs" / "spec").glob("*.md")) for i in ids_in_spec(page.read_text()))


@cache
def cited_ids() -> dict[str, str]:
    """Each cited id, and one file that cites it."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return {i: str(file.relative_to(ROOT)) for file in files for i in ids_cited(file.read_text(), str(file))}


def test_a_rule_number_stands_for_one_rule():
    assert spec_ids(), "no rules found under docs/spec"
    assert [i for i, count in Counter(spec_ids()).items() if count > 1] == []


def test_every_heading_in_the_spec_that_looks_like_a_rule_is_one():
    headings = re.compile(r"^###.*$", re.MULTILINE)
    lines = [line for page in (ROOT / "docs" / "spec").glob("*.md") for line in headings.findall(page.read_text())]
    assert [line for line in lines if not ids_in_spec(line)] == []


def test_every_rule_is_cited_by_a_test():
    missing = [i for i in spec_ids() if i not in cited_ids()]
    assert not missing, f"rules of docs/spec that no test cites: {', '.join(missing)}"


def test_every_cited_rule_exists():
    unknown = {i: file for i, file in cited_ids().items() if i not in spec_ids()}
    assert not unknown, f"tests cite rules that docs/spec does not have: {unknown}"


def test_citations_are_found_wherever_a_marker_may_stand():
    text = (
        "import pytest\npytestmark = [pytest.mark.rule('A1')]\n@pytest.mark.rule('A2', 'A3')\ndef test_a(): ...\n"
        "case = pytest.param(1, marks=pytest.mark.rule('A4'))\nother.rule('A5')\n"
    )
    assert sorted(ids_cited(text, "example")) == ["A1", "A2", "A3", "A4"]
    with pytest.raises(AssertionError, match="plain strings"):
        list(ids_cited("pytest.mark.rule(name)", "example"))


# ---- imports and purity ---------------------------------------------------------------------------------------------


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_imports_point_down_only():
    linter = [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"]
    done = run(*linter, "--no-cache", "--no-logo")
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_tallymark_is_silent_and_loads_nothing_heavy():
    probe = f"import sys, tallymark; print(*sorted(set({LATE!r}) & set(sys.modules)))"
    done = run(sys.executable, "-W", "error", "-c", probe)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def impurities(text: str) -> list[str]:
    """Imports that a pure file may not have, and calls that do input, output or worse."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = node.module or "."
            names = [f"{package}.{alias.name}" for alias in node.names] if package in (".", "tallymark") else [package]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            found.append(f"line {node.lineno}: calls {node.func.id}()")
            continue
        else:
            continue
        found += [f"line {node.lineno}: imports {name}" for name in names if name not in PURE_IMPORTS]
    return found


@pytest.mark.parametrize("name", PURE)
def test_the_core_is_pure(name):
    assert impurities((SOURCE / name).read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from os import path",
        "from tallymark import store",
        "from . import store",
        "print(1)",
        "open('x')",
    ],
)
def test_an_impurity_is_found(line):
    assert len(impurities(f"def f():\n    {line}\n")) == 1


# ---- size -----------------------------------------------------------------------------------------------------------


def oversized(text: str) -> list[str]:
    """Files and functions that do not fit on a screen or two."""
    lines = len(text.splitlines())
    found = [f"{lines} lines; at most {MAX_FILE_LINES}"] if lines > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"line {node.lineno}: {node.name} has {length} lines; at most {MAX_FUNCTION_LINES}")
    return found


def test_files_and_functions_are_short():
    faults = {str(file.relative_to(ROOT)): oversized(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}
    assert faults, "no source files found"
    assert {name: found for name, found in faults.items() if found} == {}


def test_what_is_too_long_is_found():
    assert len(oversized("def f():\n" + "    pass\n" * MAX_FUNCTION_LINES)) == 1
    assert len(oversized("\n" * (MAX_FILE_LINES + 1))) == 1


# ---- hygiene --------------------------------------------------------------------------------------------------------


def files_of_the_project() -> list[Path]:
    """What git knows or would add; in an unpacked sdist, everything that is not hidden."""
    git = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = (
        subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False) if (ROOT / ".git").exists() else None
    )
    if listed is not None and listed.returncode == 0:
        return [file for name in listed.stdout.split("\0") if name and (file := ROOT / name).is_file()]
    return [file for file in ROOT.rglob("*") if file.is_file() and not any(p[0] == "." for p in file.parts)]


def blemishes(text: str) -> list[str]:
    """Paths of one machine, its package index, and notes to oneself."""
    homes = ["/" + name + "/" for name in ("root", "home", "Users")]
    if len(ROOT.parents) > 1:
        homes.append(f"{ROOT.parent}/")
    patterns = [rf"(?<![\w.:/~-]){re.escape(home)}[\w.]" for home in homes]
    patterns += [r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b", "index" + "-url", "find" + "-links"]
    lines = text.splitlines()
    return [f"line {i}: {line.strip()[:80]}" for i, line in enumerate(lines, 1) if re.search("|".join(patterns), line)]


def test_nothing_in_the_tree_speaks_of_one_machine_or_is_left_to_do():
    found = {}
    for file in files_of_the_project():
        body = file.read_bytes()
        if b"\0" not in body:
            found[str(file.relative_to(ROOT))] = blemishes(body.decode("utf-8", errors="replace"))
    assert "pyproject.toml" in found
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize("line", ["see /" + "root/x", f"'{ROOT.parent}/x'", "# TO" + "DO: later"])
def test_a_blemish_is_found(line):
    assert len(blemishes(line)) == 1


# ---- the public face ------------------------------------------------------------------------------------------------


def undocumented(names: Iterable[str], module: object, page: str) -> list[str]:
    """Names without a docstring of their own, or that the page does not show as code."""
    found = []
    for name in names:
        thing = getattr(module, name)
        has_text = inspect.ismodule(thing) or inspect.isclass(thing) or callable(thing)
        if has_text and not (thing.__doc__ or "").strip():
            found.append(f"{name}: no docstring")
        if not re.search(rf"`(?:tallymark\.)?{re.escape(name)}\b", page):
            found.append(f"{name}: not in docs/reference/api.md")
    return found


def test_every_public_name_is_documented():
    tallymark = importlib.import_module("tallymark")
    assert len(set(tallymark.__all__)) == len(tallymark.__all__) > 0
    assert undocumented(tallymark.__all__, tallymark, (ROOT / "docs" / "reference" / "api.md").read_text()) == []


def test_every_error_is_in_the_reference():
    errors = importlib.import_module("tallymark.errors")
    names = [name for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)]
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert [name for name in names if f"`{name}`" not in page] == []
