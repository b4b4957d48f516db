"""A store in this process's memory: the oracle that other adapters are measured against.

What this file alone knows: named worlds, shared by every `MemoryStore` of the same name in one process. Nothing is
durable, and a forked or spawned child has a world of its own.

Rules a change must keep:
- Every operation is atomic under one lock per world, so that what it does can be said in one sentence.
- A listing is a snapshot, taken when its first object is asked for.
- Keys are compared as strings: for code points this is the byte order of UTF-8.
"""

from __future__ import annotations

import bisect
import errno
import hashlib
import io
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from tallymark.errors import StoreUnsuited
from tallymark.store.keys import check_key, check_prefix
from tallymark.store.port import Failed, Listed, Moved
from tallymark.store.publish import arriving


class _World:
    """The objects of one name, and their keys in order."""

    __slots__ = ("bodies", "keys", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bodies: dict[str, bytes] = {}
        self.keys: list[str] = []

    def write(self, key: str, body: bytes) -> None:
        if key not in self.bodies:
            bisect.insort(self.keys, key)
        self.bodies[key] = body

    def erase(self, key: str) -> None:
        if self.bodies.pop(key, None) is not None:
            del self.keys[bisect.bisect_left(self.keys, key)]


_worlds: dict[str, _World] = {}
_worlds_lock = threading.Lock()


class MemoryStore:
    """Objects in a dict. The same `name` is the same objects; without a name the store shares with nobody.

    `creates_exclusively=False` makes it a client without conditional create: `create` raises `StoreUnsuited`.
    `all_clients_create=True` makes it promise what POSIX promises; the default is what an object store promises.
    Both are said of this client only, never of the objects.
    """

    __slots__ = ("_all_clients_create", "_creates_exclusively", "_name", "_world")

    def __init__(self, name: str = "", *, creates_exclusively: bool = True, all_clients_create: bool = False) -> None:
        self._name = name
        self._creates_exclusively = creates_exclusively
        self._all_clients_create = all_clients_create
        with _worlds_lock:
            self._world = _worlds.setdefault(name, _World()) if name else _World()

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    @property
    def creates_exclusively(self) -> bool:
        return self._creates_exclusively

    @property
    def all_clients_create(self) -> bool:
        return self._all_clients_create

    @property
    def lists_in_order(self) -> bool:
        return True

    @property
    def visibility_delay_s(self) -> float:
        return 0.0

    def read(self, key: str) -> bytes | None:
        check_key(key)
        with self._world.lock:
            return self._world.bodies.get(key)

    def create(self, key: str, body: bytes) -> bool:
        check_key(key)
        if not self._creates_exclusively:
            raise StoreUnsuited(f"{self.url} was made without conditional create; it cannot create {key!r}", key=key)
        with self._world.lock:
            if key in self._world.bodies:
                return False
            self._world.write(key, bytes(body))
            return True

    def put(self, key: str, body: bytes) -> None:
        check_key(key)
        with self._world.lock:
            self._world.write(key, bytes(body))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        check_prefix(prefix)
        return self._listing(prefix, after)

    def _listing(self, prefix: str, after: str) -> Iterator[Listed]:
        found = []
        with self._world.lock:
            keys, bodies = self._world.keys, self._world.bodies
            start = max(bisect.bisect_left(keys, prefix), bisect.bisect_right(keys, after))
            for index in range(start, len(keys)):
                key = keys[index]
                if not key.startswith(prefix):
                    break
                found.append(Listed(key, len(bodies[key])))
        yield from found

    def delete(self, keys: Sequence[str]) -> Sequence[Failed]:
        for key in keys:
            check_key(key)
        with self._world.lock:
            for key in keys:
                self._world.erase(key)
        return []

    def upload(self, source: Path, key: str) -> Moved:
        check_key(key)
        body = source.read_bytes()
        self.put(key, body)
        return _moved(body)

    def download(self, key: str, target: Path) -> Moved:
        body = self._present(key)
        with arriving(target) as out:
            out.write(body)
        return _moved(body)

    def open(self, key: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, io.BytesIO(self._present(key)))))

    def size(self, key: str) -> int | None:
        body = self.read(key)
        return None if body is None else len(body)

    def local_path(self, key: str) -> Path | None:
        return None

    def _present(self, key: str) -> bytes:
        body = self.read(key)
        if body is None:
            raise FileNotFoundError(errno.ENOENT, f"no object in {self.url}", key)
        return body


def _moved(body: bytes) -> Moved:
    return Moved(len(body), hashlib.sha256(body).hexdigest())
