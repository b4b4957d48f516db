"""What a rank brings to a step: checked before a byte is written, then saved, then put into words.

Rules a change must keep:
- `prepare` refuses everything that can be refused; it only reads.
- The marker's bytes are fixed once, and its name follows from them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from tallymark import adopted, inventory, layout, records, transfer
from tallymark.checkpoint import GENERIC, Checkpoint
from tallymark.errors import InvalidInput
from tallymark.records import FileFact, Marker, Plain, to_plain
from tallymark.register import Patience
from tallymark.store.port import RunStore
from tallymark.transfer import Local
from tallymark.values import legible
from tallymark.version import __version__


@dataclass(frozen=True, slots=True)
class Offer:
    """Nothing, local files to copy, or data that lie elsewhere; with this rank's metrics and metadata."""

    metrics: Plain
    kind: str = GENERIC
    metadata: Plain | None = None
    files: tuple[Local, ...] = ()
    url: str | None = None
    chosen: tuple[str, ...] | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to save."""
        return not self.files and self.url is None

    def repeats(self, other: Offer, files: tuple[FileFact, ...]) -> bool:
        """Whether this is `other` once more, of which `files` were saved. Reads the local files."""
        words = (self.metrics, self.kind, self.metadata, self.url, self.chosen)
        if words != (other.metrics, other.kind, other.metadata, other.url, other.chosen):
            return False
        return self.url is not None or transfer.digests(self.files) == files


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank saves: the run's store, how to open other places, and how long to try."""

    store: RunStore
    open_data: Callable[[str], RunStore]
    patience: Patience


def prepare(metrics: Plain, checkpoint: Checkpoint | str | os.PathLike[str] | None, prefix: str, place: Place) -> Offer:
    """What is offered for a step whose folder is `prefix`. Raises InvalidInput, FileNotFoundError, TypeError."""
    if checkpoint is None:
        return Offer(metrics)
    if isinstance(checkpoint, str | os.PathLike):
        checkpoint = Checkpoint.from_directory(os.fspath(checkpoint))
    if not isinstance(checkpoint, Checkpoint):
        raise InvalidInput(f"checkpoint is a {type(checkpoint).__name__}, not a path or a tallymark.Checkpoint")
    local, url, chosen = checkpoint._offered()
    metadata = to_plain(checkpoint.metadata, "metadata")
    if local is None:
        return Offer(metrics, kind=checkpoint.kind, metadata=metadata, url=url, chosen=chosen)
    root = transfer.local_folder(place.store, "")
    if root is not None and root.resolve().is_relative_to(local.resolve()):
        raise InvalidInput(f"{str(local)!r} holds the run itself, {place.store.url!r}: save a folder that does not")
    files = transfer.scan(local, prefix_bytes=len(f"{place.store.url}/{prefix}".encode()))
    return Offer(metrics, kind=checkpoint.kind, metadata=metadata, files=tuple(files))


def save(offer: Offer, prefix: str, place: Place) -> tuple[str | None, tuple[FileFact, ...]]:
    """Copy the files, or look at the adopted ones: the recorded path, and what lies there. Raises StoreError, OSError.

    InvalidInput and FileNotFoundError of adopted data are raised before anything is written.
    """
    if offer.url is not None:
        return adopted.claim(offer.url, offer.chosen, place.store, place.open_data, place.patience)
    if not offer.files:
        return None, ()
    return prefix, transfer.upload(offer.files, place.store, prefix, place.patience)


def put_into_words(
    offer: Offer,
    *,
    attempt: int,
    step: int,
    rank: int,
    seat: str,
    saved: tuple[str | None, tuple[FileFact, ...]],
    failure: BaseException | None,
    took_s: float,
) -> tuple[str, bytes]:
    """The marker's key and bytes: `saved`, `empty`, or `failed` with the cause."""
    path, files = saved
    cause = legible(f"{type(failure).__name__}: {failure}", 2000) if failure else ""
    marker = Marker(
        attempt=attempt,
        step=step,
        first_rank=rank,
        last_rank=rank,
        seats=(seat,),
        status="failed" if failure else ("empty" if offer.empty else "saved"),
        host=socket.gethostname(),
        pid=os.getpid(),
        path=path,
        adopted=offer.url is not None,
        kind=offer.kind,
        metadata=offer.metadata or {},
        files=files,
        metrics=offer.metrics,
        durations_s={"save": round(took_s, 6)},
        cause=cause,
        version=__version__,
    )
    body = records.canonical(marker)
    return layout.marker_key(attempt, step, inventory.name_of(marker, body)), body
