"""A store that counts: what was asked of the store inside it, in which order, and how much of that was side by side.

For counting requests against a budget, and, through its hooks, for stopping a process at an exact operation.

What this file alone knows: that a listing is one request per page of 1,000 keys and begins when its first key is
wanted, and that deleting takes one request per batch of 1,000.

Rules a change must keep:
- Everything is forwarded as it is, errors too. An operation is recorded before it begins, so that one which never ends
  is there as well.
- The hooks run in the caller's thread and outside the lock: a hook may block, raise, or kill the process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from tallymark.store.port import Failed, Listed, Moved, RunStore

PAGE = 1000


@dataclass(slots=True)
class Operation:
    """One call of the port.

    `number` counts from 0 in the order of beginning. `name` is the method, `key` its key, prefix, or first key.
    `began` and `ended` are ticks of one clock that moves whenever an operation begins or ends; `ended` is 0 until then.
    """

    number: int
    name: str
    key: str
    thread: str
    began: int
    ended: int = 0
    requests: int = 1


Hook: TypeAlias = Callable[[Operation], None]


class CountingStore:
    """Forwards every call to `inner` and records it in `operations`.

    `before` is called when an operation is about to begin, and what it raises is raised instead of the operation;
    `after` when one has returned (a listing: when it was read, or is not read further). Both may be set at any time.
    """

    def __init__(self, inner: RunStore, *, before: Hook | None = None, after: Hook | None = None) -> None:
        self.inner = inner
        self.before = before
        self.after = after
        self.operations: list[Operation] = []
        self._tick = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"CountingStore({self.inner!r})"

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def creates_exclusively(self) -> bool:
        return self.inner.creates_exclusively

    @property
    def all_clients_create(self) -> bool:
        return self.inner.all_clients_create

    @property
    def lists_in_order(self) -> bool:
        return self.inner.lists_in_order

    @property
    def visibility_delay_s(self) -> float:
        return self.inner.visibility_delay_s

    def read(self, key: str) -> bytes | None:
        with self._counted("read", key):
            return self.inner.read(key)

    def create(self, key: str, body: bytes) -> bool:
        with self._counted("create", key):
            return self.inner.create(key, body)

    def put(self, key: str, body: bytes) -> None:
        with self._counted("put", key):
            self.inner.put(key, body)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        with self._counted("list", prefix) as operation:
            for index, item in enumerate(self.inner.list(prefix, after)):
                operation.requests = index // PAGE + 1
                yield item

    def delete(self, keys: Sequence[str]) -> Sequence[Failed]:
        with self._counted("delete", keys[0] if keys else "") as operation:
            operation.requests = -(-len(keys) // PAGE)
            return self.inner.delete(keys)

    def upload(self, source: Path, key: str) -> Moved:
        with self._counted("upload", key):
            return self.inner.upload(source, key)

    def download(self, key: str, target: Path) -> Moved:
        with self._counted("download", key):
            return self.inner.download(key, target)

    def open(self, key: str) -> BinaryIO:
        with self._counted("open", key):
            return self.inner.open(key)

    def size(self, key: str) -> int | None:
        with self._counted("size", key):
            return self.inner.size(key)

    def local_path(self, key: str) -> Path | None:
        return self.inner.local_path(key)

    @contextlib.contextmanager
    def _counted(self, name: str, key: str) -> Iterator[Operation]:
        thread = threading.current_thread().name
        with self._lock:
            self._tick += 1
            operation = Operation(len(self.operations), name, key, thread, self._tick)
            self.operations.append(operation)
        returned = False
        try:
            if self.before is not None:
                self.before(operation)
            yield operation
            returned = True
        except GeneratorExit:  # a listing of which the caller has seen enough
            returned = True
            raise
        finally:
            with self._lock:
                self._tick += 1
                operation.ended = self._tick
            if returned and self.after is not None:
                self.after(operation)


def requests(operations: Iterable[Operation], name: str | None = None) -> int:
    """How many requests an object store was sent by these operations, or by those of one name."""
    return sum(operation.requests for operation in operations if name in (None, operation.name))


def round_trips(operations: Iterable[Operation]) -> int:
    """How many of these finished operations stand one after another: the length of the longest chain of which each
    began after the one before it had ended.

    Operations that are sent side by side may still happen not to overlap in a store that answers at once: let `before`
    pause for longer than it takes to start a thread.
    """
    length, last = 0, 0
    for operation in sorted((operation for operation in operations if operation.ended), key=lambda item: item.ended):
        if operation.began > last:
            length, last = length + 1, operation.ended
    return length
