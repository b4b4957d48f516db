"""How a file gets its name: whole, once, and durably. POSIX, local or NFS.

Rules a change must keep:
- A name always shows a whole file. Bytes go to a private file in the same folder (`.tallymark-` and 32 hex digits),
  are synced, and only then get the name: by `link`, which has one winner, or by `rename`, which replaces. Then the
  folder is synced.
- Whether a `link` that failed did happen is judged by the private file's link count, never by the error: an NFS
  client repeats a request whose reply was lost, and the repetition fails (open(2), under O_EXCL).
- A folder is relied upon only after this process has synced the folder that names it: another process may have made
  it and died before it did.
- A folder may vanish when it is empty; a writer that finds it gone makes it again. A private file keeps it.

Errors are the operating system's own; `local` says what they mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

PRIVATE_NAME = re.compile(r"\.tallymark-[0-9a-f]{32}")


class NoHardLinks(OSError):
    """The file system cannot `link`, so nothing can be created exclusively on it."""


def private_path(target: Path) -> Path:
    """A name beside `target` that nobody else uses and that no listing shows."""
    return target.with_name(f".tallymark-{secrets.token_hex(16)}")


@contextlib.contextmanager
def arriving(target: Path) -> Iterator[BinaryIO]:
    """Write a local file that appears under its name whole, or not at all. For downloads: it is not synced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    private = private_path(target)
    try:
        with open(private, "xb") as out:
            yield out
        os.replace(private, target)
    except BaseException:
        unlink_quietly(private)
        raise


def write_all(fd: int, body: bytes) -> None:
    """Write every byte, however few the kernel takes at a time."""
    view = memoryview(body)
    while view:
        view = view[os.write(fd, view) :]


def unlink_quietly(path: Path) -> None:
    """Remove a private file. One that stays is litter nobody sees, and no reason to call a write failed."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # A folder above the root that may be passed but not read: it was there before us.
    try:
        os.fsync(fd)
    except OSError as exc:
        # File systems whose folders cannot be synced say one of these; all other errors mean what they say.
        if exc.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    finally:
        os.close(fd)


class Publisher:
    """Publishes files below `root`, which the first of them makes. Safe in threads and among processes."""

    __slots__ = ("_above", "_root", "_settled")

    def __init__(self, root: Path) -> None:
        self._root = root
        self._settled: set[Path] = set()
        self._above: set[Path] = set()

    def create(self, target: Path, fill: Callable[[int], None]) -> bool:
        """Publish a new file; False if the name is taken by a file. Durable either way."""
        private = self._write_private(target, fill)
        try:
            created = _link(private, target)
        finally:
            unlink_quietly(private)
        # The loser syncs too: it is about to act on an entry whose writer may have died before its own sync.
        sync_folder(target.parent)
        return created

    def replace(self, target: Path, fill: Callable[[int], None]) -> None:
        """Publish a file, whatever has the name now."""
        private = self._write_private(target, fill)
        try:
            os.replace(private, target)
        except BaseException:
            unlink_quietly(private)
            raise
        sync_folder(target.parent)

    def _write_private(self, target: Path, fill: Callable[[int], None]) -> Path:
        private = private_path(target)
        fd = self._open_private(private)
        try:
            try:
                self._settle(private.parent)  # not before: until now the folder could vanish
                fill(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            unlink_quietly(private)
            raise
        return private

    def _open_private(self, private: Path) -> int:
        """Open the private file, making its folder if need be, and again if somebody removes it in between."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(16):
            try:
                return os.open(private, flags, 0o666)
            except FileNotFoundError:
                self._make(private.parent)
        return os.open(private, flags, 0o666)

    def _make(self, folder: Path) -> None:
        self._settled.clear()
        self._above.update(path for path in self._root.parents if not path.exists())
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as exc:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from exc
        except FileNotFoundError as exc:
            if self._root.exists():
                return  # somebody removed a folder of the run in between
            # The file system itself will not have it (as /proc does not): waiting will not help.
            raise PermissionError(errno.EACCES, "no folder can be made here", str(folder)) from exc

    def _settle(self, folder: Path) -> None:
        """Sync the names of the folder and its parents, once per process: who made them may have died before it did."""
        if folder in self._settled:
            return
        if folder == self._root:
            for path in self._above:
                sync_folder(path.parent)
        else:
            self._settle(folder.parent)
        sync_folder(folder.parent)
        if len(self._settled) >= 4096:  # A long run has a folder per step.
            self._settled.clear()
        self._settled.add(folder)


def _link(private: Path, target: Path) -> bool:
    try:
        os.link(private, target)
    except OSError as exc:
        if os.stat(private).st_nlink == 2:
            return True
        if exc.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise NoHardLinks(exc.errno, "the file system has no hard links", str(target)) from exc
        if exc.errno != errno.EEXIST or target.is_dir():
            raise
        return False
    return True
