"""The real command, as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tallymark

COMMAND = [sys.executable, "-W", "error", "-m", "tallymark"]
LIMIT_S = 100


def environment(**more: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TALLYMARK_", "AWS_"))}
    return ours | {"PYTHONWARNINGS": "error"} | more


def tally(*arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(**more), timeout=LIMIT_S, check=False
    )


def start(*arguments: str | Path, **more: str) -> subprocess.Popen[str]:
    """Start a command, with pipes."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**more))


def shard(folder: Path, name: str, body: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(body)
    return folder


def two_ranks(place: Path, launch_id: str = "a", **more: Any) -> tuple[tallymark.Worker, tallymark.Worker]:
    """Both workers of a small job, in this process."""
    first, second = (
        tallymark.join(place, rank=rank, world_size=2, launch_id=launch_id, host_driver=False, **more)
        for rank in (0, 1)
    )
    return first, second


def document(*arguments: str | Path) -> Any:
    """What a command says in JSON, which is strict."""
    done = tally(*arguments, "--json")
    assert done.stderr == "" and done.returncode == 0
    assert done.stdout.isascii()
    return json.loads(done.stdout, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
