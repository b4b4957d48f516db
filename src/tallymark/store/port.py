"""The store port: all that the protocol asks of a store, in bytes and keys.

Two ports, both structural: an adapter implements them without importing this file at run time.

- `Store`: small whole objects. Records only.
- `Files`: moving a shard's files. Nothing but `transfer` and readers use it.

Keys are relative to the run's root, use `/`, never begin with `/`, and never have an empty, `.` or `..` part.
A prefix is `""` or ends in `/`: `exp-1/` never matches `exp-10/`.

Rules a change must keep:
- `read` returns None only for *absent*. Throttled, forbidden, timed out, half-read: a `StoreError`.
- `create` and `put` publish the whole object or nothing, by one plain request or one link.
- `list` sees what other clients have finished writing before it began. No listing cache, anywhere.
- Anything else than a clean success of `create`, `put` or `delete` says nothing about what happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol


class Listed(NamedTuple):
    """One object as a listing shows it."""

    key: str
    size: int


class Failed(NamedTuple):
    """One key that `delete` could not delete, and why."""

    key: str
    why: str


class Moved(NamedTuple):
    """What an upload or download moved: bytes, and their sha256 as 64 hex digits."""

    size: int
    digest: str


class Store(Protocol):
    """Small whole objects under one root.

    `creates_exclusively`: `create` has at most one winner per key, raced by any number of clients of this kind.
    `all_clients_create`: every client that can reach this store creates through the same exclusive operation
    (POSIX `link`), so that even slot 0 needs no ballots.
    `lists_in_order`: `list` yields keys in ascending byte order.
    `visibility_delay_s`: how long a finished write of another client may stay invisible to `list` and `read`.
    `url`: the root as a person would write it, without credentials.
    """

    @property
    def url(self) -> str: ...
    @property
    def creates_exclusively(self) -> bool: ...
    @property
    def all_clients_create(self) -> bool: ...
    @property
    def lists_in_order(self) -> bool: ...
    @property
    def visibility_delay_s(self) -> float: ...

    def read(self, key: str) -> bytes | None:
        """The whole object, or None if and only if there is none. Raises StoreError."""
        ...

    def create(self, key: str, body: bytes) -> bool:
        """Write the object if the key is free: True if this call created it, False if the key is taken.

        False may also be the answer to a retry of a request of ours that did land: read back to know.
        Raises StoreError when the outcome is unknown (409, 429, 5xx, reset, time-out) or refused.
        """
        ...

    def put(self, key: str, body: bytes) -> None:
        """Write the object, replacing what is there. Raises StoreError."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Every object whose key starts with `prefix` and is greater than `after`. Raises StoreError.

        A listing that cannot be finished raises; it never just ends. Folder markers (keys ending in `/`) and an
        adapter's own private files are not shown.
        """
        ...

    def delete(self, keys: Sequence[str]) -> Sequence[Failed]:
        """Delete objects, in batches where the store has them. An absent key is no failure. Raises StoreError."""
        ...


class Files(Protocol):
    """Moving files to and from the same root. Memory is bounded, whatever the size of a file."""

    def upload(self, source: Path, key: str) -> Moved:
        """Copy a local file to `key`, durable on return; the digest is of the bytes that were sent.

        On an error no half object stays under `key`. OSError of the local file is raised as it is.
        """
        ...

    def download(self, key: str, target: Path) -> Moved:
        """Copy `key` to a local file that does not exist yet; on an error none is left. FileNotFoundError if absent."""
        ...

    def open(self, key: str) -> BinaryIO:
        """A seekable, buffered, read-only stream of `key`. FileNotFoundError if absent."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes of the object by a direct look at that very key, or None if and only if there is none."""
        ...

    def local_path(self, key: str) -> Path | None:
        """Where the object lies in this machine's file system, if it does: for opening without a copy."""
        ...


class RunStore(Store, Files, Protocol):
    """Both ports on one root: what an adapter is."""
