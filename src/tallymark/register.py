"""Registers: write-once cells, here by conditional create.

This file alone knows how an ambiguous write is settled, and how long that is tried. Rules a change must keep:

- Anything but a clean "created" is settled by reading back and comparing bytes: an error may hide a write of ours that
  landed, and "exists" may be said of a key that is still free.
- While nothing can be read, the earlier request may still land: the same bytes go to the same key again, never others.
- An error is never evidence of absence.
- A `StoreError` from `propose` means that our bytes can never become the register's value. `CommitUnknown` means that
  they still may, or already are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tallymark.errors import CommitUnknown, StoreDenied, StoreError, StoreUnsuited
from tallymark.parallel import each
from tallymark.store.port import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often something is tried again: exponential back-off with full jitter.

    Full jitter, so that proposers who disturbed each other do not meet again in step.
    """

    timeout_s: float = 120.0
    first_pause_s: float = 0.05
    longest_pause_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random

    def deadline(self) -> float:
        """When patience that begins now ends, on its own clock."""
        return self.clock() + self.timeout_s

    def attempts(self, until: float | None = None) -> Iterator[int]:
        """1, 2, 3 ... with a pause before each but the first; ends when time is up. The first always comes.

        `until` is a `deadline()` that several calls share.
        """
        until = self.deadline() if until is None else until
        longest, attempt = self.first_pause_s, 1
        while True:
            yield attempt
            left_s = until - self.clock()
            if left_s <= 0:
                return
            self.sleep(min(longest * self.random(), left_s))
            longest, attempt = min(2 * longest, self.longest_pause_s), attempt + 1


def retrying(call: Callable[[], T], patience: Patience, *, until: float | None = None) -> T:
    """What `call` returns, tried again after every retryable StoreError.

    Raises a StoreError that is not retryable at once, and the last one when patience ends. Only for calls that may
    run twice.
    """
    last: StoreError | None = None
    for _ in patience.attempts(until):
        try:
            return call()
        except StoreError as problem:
            if not problem.retryable:
                raise
            last = problem
    assert last is not None  # the first attempt always comes
    raise last


def read_all(store: Store, keys: Iterable[str], patience: Patience, *, limit: int = 32) -> list[bytes | None]:
    """The objects under these keys, read side by side, each tried again like `retrying`; None for an absent one."""
    return each(lambda key: retrying(lambda: store.read(key), patience), keys, limit=limit)


class Register(Protocol):
    """A kind of write-once cells; each key is a cell."""

    def propose(self, key: str, body: bytes) -> bytes:
        """The bytes that the cell holds for ever: `body` if it won.

        Raises StoreError if `body` was not accepted and never will be by this call, CommitUnknown if it may have been.
        """
        ...

    def decided(self, key: str) -> bytes | None:
        """The bytes of the cell, or None while it is undecided. Raises StoreError."""
        ...


class CreateRegister:
    """Cells by conditional create. One request if the key is free, two if it is taken.

    The store's `create` must be exclusive among all clients that propose to the key.
    """

    __slots__ = ("_patience", "_store")

    def __init__(self, store: Store, patience: Patience) -> None:
        self._store = store
        self._patience = patience

    def propose(self, key: str, body: bytes) -> bytes:
        """The decided bytes. StoreDenied and StoreUnsuited are raised as they are only if nothing can have landed."""
        doubt: StoreError | None = None
        for attempt in self._patience.attempts():
            try:
                if self._store.create(key, body):
                    return body
                refused = False
            except StoreError as problem:
                if attempt == 1 and isinstance(problem, StoreDenied | StoreUnsuited):
                    raise
                doubt, refused = problem, not problem.retryable
            try:
                if (found := self._store.read(key)) is not None:
                    return found
            except StoreError as problem:
                doubt, refused = problem, refused or not problem.retryable
            if refused:
                break
        why = doubt or "the store says that it exists, but shows nothing there"
        message = f"whether {key!r} in {self._store.url} was written is not known, and it may still be: {why}"
        raise CommitUnknown(message, key=key) from doubt

    def decided(self, key: str) -> bytes | None:
        """The bytes of the cell, or None while it is undecided. Raises StoreError."""
        return retrying(lambda: self._store.read(key), self._patience)
