"""The commands, in words: what each does, and how to use it.

Rule a change must keep: every command has examples, the plainest first.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command: the module and function that run it, what it does, and how to use it."""

    runs: str
    summary: str
    text: str
    examples: tuple[tuple[str, str], ...]


COMMANDS = {
    "demo": Command(
        "demo:run",
        "train with 4 real processes, kill one, resume with 3, check everything",
        "Run a small job for real: 4 processes train and save, different ones at different steps. One of them is "
        "killed in the middle of an upload, and the step is aborted. The job starts again with 3 processes and resumes "
        "from the last commit. Then every promise that can be checked is checked. Takes some ten seconds, and needs "
        "nothing but Python. Without a URL it runs in a temporary folder, which is removed.",
        (
            ("tallymark demo", "in a temporary folder"),
            ("tallymark demo --keep", "keep the folder, to look at it with ls, show, status and verify"),
            ("tallymark demo s3://bucket/demo", "on S3; the place must be empty and is kept"),
        ),
    ),
    "drive": Command(
        "drive:run",
        "decide the steps of a run, as a process of its own",
        "Watch the markers of a run, commit each step whose ranks have all reported, abort those that cannot be "
        "whole, and say on stderr which ranks are waited for. Rank 0 of a job does this anyway; a driver of its own "
        "keeps deciding if rank 0's machine dies. Any number may run at once, anywhere, started and stopped at any "
        "time. Ends when the run is finished. SIGINT and SIGTERM end it cleanly; a second one ends it at once.",
        (
            ("tallymark drive s3://bucket/runs/llama", "until the run is finished"),
            ("tallymark drive --forever /runs/llama", "until it is stopped, over any number of launches"),
            ("tallymark drive --json /runs/llama", "a line of JSON on stdout for each new journal entry"),
        ),
    ),
    "ls": Command(
        "read:ls",
        "list the committed steps",
        "List the committed steps that the run builds on, oldest first. With --all: every entry of the journal, with "
        "attempts, aborts and their reasons, and commits that a rollback left behind.",
        (
            ("tallymark ls s3://bucket/runs/llama", "the committed steps"),
            ("tallymark ls --all /runs/llama", "what was aborted, why, and which ranks were behind it"),
            ("tallymark ls --json /runs/llama | jq '.steps[-1].metrics'", "for programs"),
        ),
    ),
    "show": Command(
        "read:show",
        "show one committed step in full",
        "Show one committed step: its metrics, which ranks contributed, their metadata, and all files with size and "
        "digest. Without STEP: the newest checkpoint.",
        (
            ("tallymark show s3://bucket/runs/llama", "the newest checkpoint"),
            ("tallymark show /runs/llama 500", "the commit of step 500"),
            ("tallymark show --json /runs/llama 500", "with whole digests"),
        ),
    ),
    "status": Command(
        "status:run",
        "say where the run stands, and who is missing",
        "Say which attempt rules, what it started from, what the newest commit is, and for every open step which ranks "
        "have reported and which are missing, on which host.",
        (
            ("tallymark status s3://bucket/runs/llama", "at a glance"),
            ("tallymark status --json /runs/llama | jq '.open_steps[].missing'", "who is waited for"),
        ),
    ),
    "verify": Command(
        "check:verify",
        "prove the files of committed steps",
        "Prove every file of a committed checkpoint against what was committed: that it is there, has its size, and, "
        "by default, has its sha256, for which it is read. Without STEP: the newest checkpoint. Adopted files have no "
        "digest; their size is checked.",
        (
            ("tallymark verify s3://bucket/runs/llama", "the newest checkpoint"),
            ("tallymark verify /runs/llama 500", "that of step 500"),
            ("tallymark verify --all --level size /runs/llama", "all of them, without reading the files"),
        ),
    ),
}
