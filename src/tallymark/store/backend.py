"""What one kind of object store must do to stand behind `FsspecStore`: the small piece per service.

Keys here are whole object names, as the service knows them. A backend raises whatever its client raises, and says in
`explain` what that means. It keeps no cache and makes, lists or probes no buckets.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from tallymark.store.port import Failed, Listed


class Meaning(enum.Enum):
    """What an error of a client says about the store."""

    ABSENT = "there is no such object"
    TAKEN = "the condition of an exclusive create failed: the key is taken"
    DENIED = "the credentials, their rights, or the bucket are wrong"
    PASSING = "the outcome is unknown, and another try may succeed"
    LASTING = "another try will fail in the same way"


class Fault(NamedTuple):
    """An error, explained; `why` is for people and carries no credential."""

    meaning: Meaning
    why: str


class Piece(NamedTuple):
    """Some bytes of an object, the size of all of it, and a tag that changes when the object does."""

    body: bytes
    total: int
    tag: str


class Backend(Protocol):
    """Whole objects and byte ranges of one bucket."""

    creates_exclusively: bool
    lists_in_order: bool

    def get(self, name: str) -> bytes: ...

    def get_range(self, name: str, start: int, stop: int) -> Piece:
        """Bytes from `start` up to `stop` or the end. An empty object is an empty piece."""
        ...

    def put(self, name: str, body: bytes, *, exclusively: bool) -> None:
        """One plain request, whatever the size."""
        ...

    def send(self, name: str, blocks: Callable[[int], bytes], size: int) -> None:
        """A large object of about `size` bytes; all of it appears, or nothing.

        `blocks(n)` gives the next n bytes, fewer only at the end; what it raises is raised.
        """
        ...

    def pages(self, prefix: str, after: str) -> Iterator[Sequence[Listed]]: ...

    def delete(self, names: Sequence[str]) -> Sequence[Failed]: ...

    def size(self, name: str) -> int: ...

    def explain(self, error: Exception, *, looking: bool) -> Fault:
        """What the error means. `looking`: it answers a HEAD, whose errors have no body to tell 404s apart."""
        ...
