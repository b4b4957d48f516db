"""The command line's grammar and its help.

Rules a change must keep:
- What might be the value of a storage option is never echoed: unknown arguments are counted, not shown.
- Commands are imported when they are run: `tallymark --help` loads no store.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from tallymark.cli import exits
from tallymark.cli.commands import COMMANDS
from tallymark.version import __version__

_URL = "where the run lies: a folder, file:///path, or s3://bucket/prefix"


class _Parser(argparse.ArgumentParser):
    """Errors start like all others of the command, and end with a way on."""

    def error(self, message: str) -> NoReturn:
        self.exit(exits.USAGE, f"tallymark: {message}\nTry '{self.prog} --help'.\n")


class _AddOption(argparse.Action):
    """Merge `--option key=value` and `--storage-options JSON` in the order in which they were given."""

    def __call__(self, parser: argparse.ArgumentParser, space: argparse.Namespace, values: Any, *_: Any) -> None:
        space.storage = {**space.storage, **values}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, with `command` as the function to call and `storage` as the storage options."""
    parser = build()
    space, unknown = parser.parse_known_args(argv)
    if len(unknown) == 1 and getattr(space, "step", 0) is None and not unknown[0].startswith("-"):
        space.step = _step(unknown.pop(), parser)  # before Python 3.13, a STEP after an option is not recognised
    if unknown:
        names = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
        values = len(unknown) - len(names)
        said = [f"unknown option {name}" for name in names] + ([f"{values} argument(s) too many"] if values else [])
        parser.error("; ".join(said))
    module, function = COMMANDS[space.name].runs.split(":")
    space.command = getattr(importlib.import_module(f"tallymark.cli.{module}"), function)
    if getattr(space, "step", None) is not None and getattr(space, "all", False):
        parser.error("give a STEP or --all, not both")
    return space


def build() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="tallymark",
        description="Look at, drive and check the checkpoints of a training run, with nothing but its storage.",
        epilog=_epilog([(command.examples[0][0], command.summary) for command in COMMANDS.values()]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tallymark {__version__}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.summary,
            description=_wrapped(command.text),
            epilog=_epilog(command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _arguments_of(sub, name)
        _common(sub)
    return parser


def _arguments_of(sub: argparse.ArgumentParser, name: str) -> None:
    if name == "demo":
        sub.add_argument("url", metavar="URL", nargs="?", help=f"{_URL}; without it, a temporary folder")
        sub.add_argument("--keep", action="store_true", help="do not remove the temporary folder")
        return
    sub.add_argument("url", metavar="URL", help=_URL)
    if name in ("show", "verify"):
        sub.add_argument("step", metavar="STEP", nargs="?", type=_a_step, help="a committed step; default: the newest")
    match name:
        case "drive":
            sub.add_argument("--forever", action="store_true", help="go on when the run is finished")
        case "ls":
            sub.add_argument("--all", action="store_true", help="every entry of the journal, aborts and all")
        case "verify":
            sub.add_argument("--all", action="store_true", help="all committed steps")
            sub.add_argument(
                "--level",
                choices=("size", "digest"),
                default="digest",
                help="size: look at each file; digest: read each file (default)",
            )


def _common(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help="JSON on stdout, with the keys of docs/reference/cli.md")
    store = sub.add_argument_group("storage options", "what the store's client needs; never shown, logged or recorded")
    store.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action=_AddOption,
        type=_a_pair,
        dest="storage",
        default={},
        help="one option, such as endpoint_url=http://127.0.0.1:9000; true and false are booleans; repeatable",
    )
    store.add_argument(
        "--storage-options",
        metavar="JSON",
        action=_AddOption,
        type=_an_object,
        dest="storage",
        help="all of them as a JSON object, as for storage_options= in Python",
    )


def _epilog(examples: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {command}\n      {meaning}" for command, meaning in examples]
    return "examples:\n" + "\n".join(lines) + "\n\nexit codes:\n" + exits.table(_width())


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _width())


def _width() -> int:
    return max(30, min(100, shutil.get_terminal_size().columns - 2))


def _a_pair(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError("KEY=VALUE is wanted (what was given is not shown)")
    return {key: {"true": True, "false": False}.get(value, value)}


def _an_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object is wanted (what was given is not shown)")
    return value


def _a_step(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise argparse.ArgumentTypeError("a step is a whole number from 0 to 10**16 - 1")
    return int(text)


def _step(text: str, parser: argparse.ArgumentParser) -> int:
    try:
        return _a_step(text)
    except argparse.ArgumentTypeError as problem:
        parser.error(f"argument STEP: {problem}")
    sys.exit(exits.USAGE)
