"""Say, once and for ever, that a distributed checkpoint is whole, with nothing but the storage that the job has.

In every rank:

    with tallymark.join("s3://bucket/runs/llama") as worker:
        for step in range(worker.first_step, total):
            ...
            worker.report(metrics, checkpoint=folder_or_None, step=step)

Anywhere:

    tallymark.open("s3://bucket/runs/llama").latest()
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tallymark.checkpoint import Checkpoint, FileInfo, Manifest
from tallymark.driver import Driver, Poll
from tallymark.errors import (
    BarrierTimeout,
    CheckpointDamaged,
    CommitUnknown,
    IdentityError,
    InvalidInput,
    JoinError,
    JoinTimeout,
    JournalCorrupt,
    RankTaken,
    RecordError,
    StepAborted,
    StoreDenied,
    StoreError,
    StoreUnsuited,
    Superseded,
    TallymarkError,
    UsageError,
    WaitTimeout,
)
from tallymark.handle import Report
from tallymark.joining import join
from tallymark.run import OpenStepStatus, Run, Status
from tallymark.version import __version__
from tallymark.worker import Worker


def open(
    url: str | os.PathLike[str] | None, *, storage_options: Mapping[str, Any] | None = None, store: Any = None
) -> Run:
    """Open a run for reading, anywhere. Nothing is read yet. Raises InvalidInput."""
    return Run(url, storage_options=storage_options, store=store)


__all__ = [
    "BarrierTimeout",
    "Checkpoint",
    "CheckpointDamaged",
    "CommitUnknown",
    "Driver",
    "FileInfo",
    "IdentityError",
    "InvalidInput",
    "JoinError",
    "JoinTimeout",
    "JournalCorrupt",
    "Manifest",
    "OpenStepStatus",
    "Poll",
    "RankTaken",
    "RecordError",
    "Report",
    "Run",
    "Status",
    "StepAborted",
    "StoreDenied",
    "StoreError",
    "StoreUnsuited",
    "Superseded",
    "TallymarkError",
    "UsageError",
    "WaitTimeout",
    "Worker",
    "__version__",
    "join",
    "open",
]
