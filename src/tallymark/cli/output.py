"""What a person or a program reads: tables, JSON, and progress.

Rules a change must keep:
- With `--json`, stdout carries JSON and nothing else; it is ASCII, so any terminal or pipe can encode it.
- `rich` is imported only when stdout (or, for progress, stderr) is a terminal.
- Nothing from the store reaches a terminal as a control sequence or as markup.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from tallymark.records import Ranges, from_plain

RIGHT = ("slot", "step", "attempt", "files", "bytes", "size")
"""Columns whose values stand to the right."""
FOLDED = ("metrics", "what", "file", "time (UTC)", "")
"""Columns that may take several lines on a terminal; no other is ever cut."""
FOLDED_MIN = 10


def prepare() -> None:
    """Make both streams able to print anything: what their encoding lacks is shown as an escape."""
    if sys.stdout is None or sys.stderr is None:  # closed by whoever started us
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  it lives as long as the process
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def emit_json(document: Mapping[str, Any], *, line: bool = False) -> None:
    """Print one JSON document; as one line where a command streams several."""
    print(json.dumps(document, allow_nan=False, indent=None if line else 2), flush=line)


def clean(text: object) -> str:
    """Text that a terminal shows as it is: control characters and the like are escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text))


def show_bytes(count: int) -> str:
    """A number of bytes for people: `999 B`, `1.5 KiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def show_ranks(ranges: Ranges) -> str:
    """Ranks for people: `0-3,5`; `-` if there are none."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges) or "-"


def show_metrics(plain: Mapping[str, Any], *, limit: int = 4) -> str:
    """The first few metrics that are single values: `loss=0.123 lr=0.001`."""
    values = {key: value for key, value in from_plain(plain).items() if not isinstance(value, list | dict)}
    shown = [f"{key}={_short(value)}" for key, value in list(values.items())[:limit]]
    return " ".join(shown) + (" ..." if len(plain) > len(shown) else "")


def show_time(wall_time: str) -> str:
    """A record's time, to the second."""
    return wall_time[:19].replace("T", " ")


def _short(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:21] + "..."


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: drawn by rich on a terminal; elsewhere plain columns, never wrapped or cut."""
    cells = [[clean(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, cells)
        return
    widths = _widths(columns, cells)
    for row in [list(columns), *cells]:
        padded = [
            text.rjust(width) if name in RIGHT else text.ljust(width)
            for text, width, name in zip(row, widths, columns, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _draw(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    widths = _widths(columns, cells)
    least = sum(FOLDED_MIN if name in FOLDED else width for name, width in zip(columns, widths, strict=True))
    if least + 3 * len(columns) > console.width:
        _print_records(columns, cells)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, width in zip(columns, widths, strict=True):
        folds = name in FOLDED
        table.add_column(
            Text(name),
            justify="right" if name in RIGHT else "left",
            overflow="fold",
            no_wrap=not folds,
            min_width=min(width, FOLDED_MIN) if folds else width,
        )
    for row in cells:
        table.add_row(*[Text(text) for text in row])
    console.print(table)


def _print_records(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """A table that is too wide for its terminal, as a line per value."""
    width = max(map(len, columns))
    for row in cells:
        print()
        for name, text in zip(columns, row, strict=True):
            print(f"{name.ljust(width)}  {text}")


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(columns, *cells, strict=True)]


class Bar(Protocol):
    """Progress that somebody may watch."""

    def say(self, text: str) -> None:
        """What is being done now."""
        ...

    def advance(self, amount: int) -> None:
        """That much more is done."""
        ...


class NoBar:
    """Progress that nobody watches."""

    def say(self, text: str) -> None:
        """Nothing."""

    def advance(self, amount: int) -> None:
        """Nothing."""


@contextlib.contextmanager
def progress(total: int, *, unit_bytes: bool) -> Iterator[Bar]:
    """A bar on stderr, removed at the end, if stderr is a terminal; else nothing at all."""
    if not sys.stderr.isatty():
        yield NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    count = DownloadColumn(binary_units=True) if unit_bytes else MofNCompleteColumn()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), count)
    console = Console(stderr=True)
    # what is printed meanwhile goes above the bar; but not to stderr if stdout leads elsewhere
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=total)

        class Watched:
            def say(self, text: str) -> None:
                bar.update(task, description=clean(text))

            def advance(self, amount: int) -> None:
                bar.advance(task, amount)

        yield Watched()
