"""Help, the page that documents the commands, and how output looks where."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import COMMAND, document, environment, tally

import tallymark
from tallymark.cli import exits
from tallymark.cli.commands import COMMANDS

DOCS = Path(__file__).parents[2] / "docs/reference/cli.md"


def test_help_teaches():
    done = tally("--help")
    assert done.returncode == 0
    for name, command in COMMANDS.items():
        assert command.examples[0][0] in done.stdout and f"    {name} " in done.stdout
    assert tally("--version").stdout == f"tallymark {tallymark.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name):
    done = tally(name, "--help", COLUMNS="60")
    assert done.returncode == 0
    for example, _ in COMMANDS[name].examples:
        assert example.startswith(f"tallymark {name}") and example in done.stdout
    for code in exits.MEANING:
        assert re.search(rf"^ +{code}  ", done.stdout, re.MULTILINE)


def test_help_is_cheap():
    loaded = "import sys; from tallymark.cli import main; main(['ls', '--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, env=environment(), check=True)
    assert "'rich'" not in done.stdout and "'fsspec'" not in done.stdout


def test_the_page_documents_codes_commands_and_keys(place, aborted):
    page = DOCS.read_text()
    for code in exits.MEANING:
        assert f"\n| {code} | " in page
    for name in COMMANDS:
        assert f"\n| `{name} " in page

    def keys(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                if key not in ("metrics", "metadata"):
                    yield from keys(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from keys(inner)

    found = [document("ls", place), document("show", place), document("status", place), document("verify", place)]
    assert [key for key in keys(found) if f"`{key}`" not in page] == []
    abort = document("ls", "--all", aborted)["entries"][3]
    assert [key for key in keys(abort) if f"`{key}`" not in page] == []


def test_any_encoding(place):
    done = tally("ls", place, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0 and "gr\\xf6\\xdfe=nan" in done.stdout


@pytest.mark.parametrize("columns", ["200", "30"])
def test_on_a_terminal(place, columns):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "ls", str(place)],
        stdout=theirs,
        stderr=theirs,
        env=environment(COLUMNS=columns, NO_COLOR="1", TERM="xterm"),
    )
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert process.wait(60) == 0
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]", seen), "no colours with NO_COLOR"
    text = re.sub(r"\x1b\[[0-9;]*m", "", seen.decode())
    if columns == "200":
        assert max(map(len, text.splitlines())) <= 200
        assert re.search(r"1 +1 +2 +0-1 +2 +2\.0 KiB", text)
    else:  # nothing is cut: a line per value
        assert re.search(r"step +1\s+attempt +1\s+slot +2\s+ranks +0-1\s+files +2\s+bytes +2\.0 KiB", text)
