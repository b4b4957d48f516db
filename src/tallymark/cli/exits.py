"""Exit codes: what a script may rely on. `docs/reference/cli.md` and every help text show this table.

Rules a change must keep: a code never changes its meaning, and every error of the tree has one.
"""

from __future__ import annotations

import textwrap

from tallymark import errors

OK = 0
NOT_THERE = 1
USAGE = 2
DAMAGED = 3
STORE = 4
RECORDS = 5
OUTCOME = 6
UNEXPECTED = 70
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143

MEANING = {
    OK: "as asked; for drive also: the run was finished, or SIGINT or SIGTERM ended it cleanly",
    NOT_THERE: "no run there, no such step, or nothing committed",
    USAGE: "the command line or a value in it is refused; nothing was written",
    DAMAGED: "verify: files of a committed checkpoint are missing or differ",
    STORE: "the store failed, refused the credentials, cannot do what is asked, or a write's outcome is unknown",
    RECORDS: "bytes in the store are no record that this version can believe; the journal may be corrupt",
    OUTCOME: "a step was aborted, a newer attempt rules, or the demo did not go as it should",
    UNEXPECTED: "an error nobody expected: please report it (TALLYMARK_DEBUG=1 shows the traceback)",
    INTERRUPTED: "ended by SIGINT",
    BROKEN_PIPE: "whoever read the output went away",
    TERMINATED: "ended by SIGTERM",
}

_BY_ERROR: tuple[tuple[type[BaseException], int], ...] = (
    (errors.InvalidInput, USAGE),
    (errors.UsageError, USAGE),
    (errors.CheckpointDamaged, DAMAGED),
    (errors.StoreError, STORE),
    (errors.CommitUnknown, STORE),
    (errors.RecordError, RECORDS),
    (errors.TallymarkError, OUTCOME),
    (OSError, STORE),
)


class NotThere(Exception):
    """What was asked for is not in the store: a message for people, and exit code NOT_THERE."""


def code_of(problem: BaseException) -> int:
    """The exit code that stands for an error."""
    if isinstance(problem, NotThere):
        return NOT_THERE
    return next((code for kind, code in _BY_ERROR if isinstance(problem, kind)), UNEXPECTED)


def table(width: int) -> str:
    """The exit codes as text, for a help epilog."""
    rows = [
        textwrap.fill(meaning, width, initial_indent=f"  {code:>3}  ", subsequent_indent=" " * 7)
        for code, meaning in MEANING.items()
    ]
    return "\n".join(rows)
