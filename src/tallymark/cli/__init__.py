"""The command line: `tallymark` and `python -m tallymark`. It uses what the library offers to anybody.

Rules a change must keep:
- An error is one line on stderr and an exit code of `exits`; a traceback only with TALLYMARK_DEBUG=1.
- The value of a storage option is never printed.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from tallymark.cli import exits, output
from tallymark.cli.parser import parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. `argv` is without the program's name."""
    output.prepare()
    try:
        arguments = parse(argv)
        code: int = arguments.command(arguments, arguments.storage)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout.fileno())
        return exits.BROKEN_PIPE
    except KeyboardInterrupt:
        print("tallymark: interrupted", file=sys.stderr)
        return exits.INTERRUPTED
    except SystemExit as end:  # --help, --version, a usage error, SIGTERM
        return end.code if isinstance(end.code, int) else exits.OK
    except Exception as problem:  # noqa: BLE001  the last resort: a person gets a line, and a script a code
        return _explain(problem)
    return code


def _explain(problem: Exception) -> int:
    """Say what went wrong; the exit code for it."""
    code = exits.code_of(problem)
    if os.environ.get("TALLYMARK_DEBUG") == "1":
        traceback.print_exception(problem)
    name = f"{type(problem).__name__}: " if code == exits.UNEXPECTED or not str(problem) else ""
    hint = " (TALLYMARK_DEBUG=1 shows the traceback)" if code == exits.UNEXPECTED else ""
    print(f"tallymark: {name}{output.clean(problem)}{hint}", file=sys.stderr)
    return code


def _silence(descriptor: int) -> None:
    """Nobody reads on: let what is still buffered go nowhere, so that the interpreter ends in silence."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
