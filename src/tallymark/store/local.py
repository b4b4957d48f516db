"""A store in a POSIX folder, local or NFS.

What this file alone knows: where an object lies, how a folder tree becomes one ordered listing, what NFS may hide,
and what an `OSError` means. How a file gets its name is in `publish`.

Rules a change must keep:
- A miss is believed only after the folders were read, unless the file system is known to be coherent: an NFS client
  may remember "no such file" for a minute, and reading the folder makes it forget.
- Listings are in the byte order of whole keys: `a-` comes before `a/b`, and `a/b` before `a0`.
- A folder that vanishes while it is listed was empty. Every other error ends the listing with an error.
- Looking never makes a folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from tallymark.errors import InvalidInput, StoreDenied, StoreError, StoreUnsuited
from tallymark.store.keys import check_key, check_prefix
from tallymark.store.mounts import COHERENT, NFS, file_system_type
from tallymark.store.port import Failed, Listed, Moved
from tallymark.store.publish import PRIVATE_NAME, NoHardLinks, Publisher, arriving, write_all
from tallymark.store.streams import SourceFailed, read_source

BLOCK_BYTES = 1 << 20
NFS_DELAY_S = 60.0

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_PASSING = {
    *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.ENOSPC, errno.EDQUOT),
    *(errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK),
}

T = TypeVar("T")


class LocalStore:
    """Objects as files under `root`. Every client creates through `link`, so every create is exclusive."""

    __slots__ = ("_coherent", "_delay_s", "_publisher", "_root")

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(os.path.abspath(root))
        self._publisher = Publisher(self._root)
        kind = file_system_type(self._root)
        self._coherent = kind in COHERENT
        self._delay_s = NFS_DELAY_S if kind in NFS else 0.0

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        return str(self._root)

    @property
    def creates_exclusively(self) -> bool:
        return True

    @property
    def all_clients_create(self) -> bool:
        return True

    @property
    def lists_in_order(self) -> bool:
        return True

    @property
    def visibility_delay_s(self) -> float:
        return self._delay_s

    def read(self, key: str) -> bytes | None:
        return self._look(key, _read_file)

    def create(self, key: str, body: bytes) -> bool:
        target = self._target(key)
        with self._raising("create", key, len(body)):
            return self._publisher.create(target, lambda fd: write_all(fd, body))

    def put(self, key: str, body: bytes) -> None:
        target = self._target(key)
        with self._raising("put", key, len(body)):
            self._publisher.replace(target, lambda fd: write_all(fd, body))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        check_prefix(prefix)
        folder, slash, part = prefix.rpartition("/")
        return self._walk(folder + slash, part, os.fsencode(after))

    def delete(self, keys: Sequence[str]) -> Sequence[Failed]:
        failed = []
        for key in keys:
            try:
                os.unlink(self._path(key))
            except _ABSENT:
                continue
            except OSError as exc:
                failed.append(Failed(key, str(self._error("delete", key, exc))))
        self._prune({self._path(key).parent for key in keys})
        return failed

    def _prune(self, folders: set[Path]) -> None:
        """Remove folders that are empty now, or a year of steps leaves a folder each for every listing to read.

        A writer that was about to use one makes it again; one that has begun keeps it, by its private file.
        """
        for folder in folders - {self._root}:
            with contextlib.suppress(OSError):  # not empty, gone already, or not ours to remove: all as well
                folder.rmdir()

    def upload(self, source: Path, key: str) -> Moved:
        target = self._target(key)
        digest, size = hashlib.sha256(), 0
        with open(source, "rb", buffering=0) as file:

            def fill(fd: int) -> None:
                nonlocal size
                while block := read_source(file, BLOCK_BYTES):
                    digest.update(block)
                    write_all(fd, block)
                    size += len(block)

            try:
                with self._raising("upload", key, os.fstat(file.fileno()).st_size):
                    self._publisher.replace(target, fill)
            except SourceFailed as exc:
                raise exc.error from None
        return Moved(size, digest.hexdigest())

    def download(self, key: str, target: Path) -> Moved:
        digest, size = hashlib.sha256(), 0
        with self.open(key) as file, arriving(target) as out:
            while True:
                with self._raising("download", key):
                    block = file.read(BLOCK_BYTES)
                if not block:
                    break
                digest.update(block)
                out.write(block)
                size += len(block)
        return Moved(size, digest.hexdigest())

    def open(self, key: str) -> BinaryIO:
        file = self._look(key, _open_file)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, f"no object in {self.url}", key)
        return file

    def size(self, key: str) -> int | None:
        return self._look(key, _size_of_file)

    def local_path(self, key: str) -> Path | None:
        return self._path(key)

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _target(self, key: str) -> Path:
        if PRIVATE_NAME.fullmatch(key.rpartition("/")[2]):
            raise InvalidInput(f"{key!r} has the form of tallymark's own private files; choose another name")
        return self._path(key)

    def _look(self, key: str, look: Callable[[Path], T | None]) -> T | None:
        """What `look` finds, or None if the object is absent."""
        path = self._path(key)
        with self._raising("read", key):
            try:
                return look(path)
            except _ABSENT:
                if not self._named(path):
                    return None
            try:
                return look(path)
            except _ABSENT:
                return None

    def _named(self, path: Path) -> bool:
        """After a miss: do the folders name this path nevertheless?"""
        if self._coherent or path == path.parent:
            return False
        try:
            with os.scandir(path.parent) as entries:
                return any(entry.name == path.name for entry in entries)
        except FileNotFoundError:
            return self._named(path.parent)
        except NotADirectoryError:
            return False

    def _walk(self, folder: str, part: str, after: bytes) -> Iterator[Listed]:
        """Objects below `folder` in ascending byte order of whole keys, whose next name starts with `part`."""
        for name, entry in self._entries(folder, part):
            key = folder + name
            raw = os.fsencode(key)
            if not name.endswith("/"):
                if raw > after and (size := self._size_of_entry(key, entry)) is not None:
                    yield Listed(key, size)
            elif raw > after or after.startswith(raw):
                yield from self._walk(key, "", after)

    def _entries(self, folder: str, part: str) -> Sequence[tuple[str, os.DirEntry[str]]]:
        """The names in a folder; those of folders end in `/`, which is what orders `a-` before `a/b`."""
        path = self._root / folder
        found = []
        with self._raising("list", folder):
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        if entry.name.startswith(part) and not PRIVATE_NAME.fullmatch(entry.name):
                            found.append((entry.name + "/" if _is_folder(path, entry) else entry.name, entry))
            except _ABSENT:
                if self._named(path) and path.is_dir():
                    raise  # It is there after all: the miss was stale, and says nothing about what is in it.
                return []
        found.sort(key=lambda item: os.fsencode(item[0]))
        return found

    def _size_of_entry(self, key: str, entry: os.DirEntry[str]) -> int | None:
        with self._raising("list", key):
            try:
                info = entry.stat()
            except _ABSENT:
                return None
            except OSError as exc:
                if exc.errno == errno.ELOOP:
                    return None
                raise
        return info.st_size if stat.S_ISREG(info.st_mode) else None

    @contextlib.contextmanager
    def _raising(self, verb: str, key: str, size: int | None = None) -> Iterator[None]:
        try:
            yield
        except NoHardLinks as exc:
            raise StoreUnsuited(
                f"the file system of {self.url} has no hard links, so {key!r} cannot be created exclusively: "
                "put the run on another file system",
                key=key,
            ) from exc
        except OSError as exc:
            raise self._error(verb, key, exc, size) from exc

    def _error(self, verb: str, key: str, exc: OSError, size: int | None = None) -> StoreError:
        message = f"could not {verb} {key!r} in {self.url}: {exc.strerror or exc}"
        if exc.errno in _DENIED:
            return StoreDenied(f"{message}; check the permissions of the folder", key=key)
        if exc.errno in _FULL and size is not None:
            message += f"; the object needs {size} bytes"
        return StoreError(message, key=key, retryable=exc.errno in _PASSING)


def _read_file(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _open_file(path: Path) -> BinaryIO:
    return open(path, "rb", buffering=BLOCK_BYTES)


def _size_of_file(path: Path) -> int | None:
    info = os.stat(path)
    return info.st_size if stat.S_ISREG(info.st_mode) else None


def _is_folder(parent: Path, entry: os.DirEntry[str]) -> bool:
    """A folder to walk into; not a link that leads back to where the walk came from."""
    if not entry.is_symlink():
        return entry.is_dir()
    try:
        return entry.is_dir() and not parent.resolve().is_relative_to(Path(entry).resolve())
    except OSError:  # A link to itself.
        return False
