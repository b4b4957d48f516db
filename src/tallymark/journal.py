"""The journal: write-once registers in one order.

This file alone reads and appends slots. Rules a change must keep:

- An entry's bytes are fixed before its slot is proposed, and a nonce makes them ours. On any doubt the same bytes go
  to the same slot again; never the next slot before this one reads back, never other bytes.
- When a slot is lost, everything is derived anew from the state after it.
- Slots are never deleted: a deleted slot would be free again, and a stalled writer would commit in the past.
- The hint and listings decide nothing: the end is where the first slot is missing.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from tallymark import history, layout, records
from tallymark.ballots import BallotRegister
from tallymark.errors import CommitUnknown, JournalCorrupt, RecordError, StoreError, StoreUnsuited
from tallymark.history import State
from tallymark.records import AnyEntry
from tallymark.register import CreateRegister, Patience, Register, read_all, retrying
from tallymark.store.port import Store

log = logging.getLogger("tallymark")
T = TypeVar("T")
READ_AHEAD = 32
_NO_HEAD = records.Head(
    attempt=0, attempt_slot=None, base=None, checkpoint=None, report=None,
    finished=None, attempts=0, commits=0, aborts=0, retired=0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry before its slot is known: its kind, the attempt that it speaks for, and its own fields."""

    kind: type[AnyEntry]
    attempt: int
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settled(Generic[T]):
    """There is nothing to append any more: the question is settled, and this is the answer."""

    answer: T


Derive: TypeAlias = Callable[[State | None], Draft | Settled[T]]


def whoami() -> str:
    """This process, for people."""
    return f"{socket.gethostname()}/{os.getpid()}"


def wall_time() -> str:
    """Now, in UTC, for people: nothing is decided by it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def new_nonce() -> str:
    """32 random hex digits."""
    return secrets.token_hex(16)


class Journal:
    """One process's view of a run's journal. Not for use by two threads at once.

    `state` is None while no slot is known.
    """

    def __init__(self, store: Store, *, patience: Patience | None = None) -> None:
        self.state: State | None = None
        self._store = store
        self._patience = patience or Patience()
        self._pending: tuple[int, bytes] | None = None
        self._news: list[AnyEntry] = []

    # ------------------------------------------------------------------------------------- reading

    def take(self) -> list[AnyEntry]:
        """The entries that were replayed or appended since the last call, in order."""
        news, self._news = self._news, []
        return news

    def refresh(self) -> None:
        """Replay every slot up to the end. Raises JournalCorrupt and StoreError.

        Reads one slot, then more and more at once, at most READ_AHEAD: catching up by one entry costs two reads.
        """
        found = 0
        width = 1
        while True:
            first = self.state.next_slot if self.state else 0
            bodies = self._slots(first, width)
            present = next((index for index, body in enumerate(bodies) if body is None), len(bodies))
            for body in bodies[:present]:
                assert body is not None
                self._absorb(body)
            if present < len(bodies):
                self._check_gap(first + present, bodies[present:])
                return
            found += present
            width = min(READ_AHEAD, found)

    def read(self, slot: int) -> AnyEntry | None:
        """The entry in a slot, not replayed."""
        body = self._slot(slot)
        return None if body is None else records.decode_entry(body, slot)

    def tip(self) -> AnyEntry | None:
        """The last entry, found by the hint and by doubling, without a replay. None: there is no run here.

        Its `head` is not checked against the entries before it; `refresh` does that. Raises RecordError if it cannot be
        believed.
        """
        low, body = self._hinted()
        if body is None:
            low, body = 0, self._slot(0)
            if body is None:
                return None
        width = 1
        while (further := self._slot(low + width)) is not None:
            low, body, width = low + width, further, 2 * width
        high = low + width
        while high - low > 1:
            middle = (low + high) // 2
            found = self._slot(middle)  # what is written counts, even if nobody can believe it: it may be voided
            if found is None:
                high = middle
            else:
                low, body = middle, found
        return records.decode_entry(body, low)

    def _hinted(self) -> tuple[int, bytes | None]:
        """The slot that the hint names and its bytes, if it is written and of the same run."""
        hinted = read_all(self._store, [layout.HINT], self._patience)[0]
        if hinted is None:
            return 0, None
        try:
            hint = records.decode(hinted, records.Hint, "the hint")
            body = self._slot(hint.slot)
            ours = body is not None and records.decode_entry(body, hint.slot).run_id == hint.run_id
        except RecordError:
            return 0, None  # advisory: a hint that cannot be read is no hint
        return hint.slot, body if ours else None

    def _slot(self, slot: int) -> bytes | None:
        return self._slots(slot, 1)[0]

    def _slots(self, first: int, count: int) -> list[bytes | None]:
        keys = [layout.slot_key(first + index) for index in range(count)]
        return read_all(self._store, keys, self._patience, limit=READ_AHEAD)

    def _check_gap(self, missing: int, bodies: list[bytes | None]) -> None:
        """Reads side by side are no snapshot: a later slot may be there. A slot still missing then was deleted."""
        if all(body is None for body in bodies) or self._slot(missing) is not None:
            return
        message = f"journal slot {missing} is missing, though a later one is there: somebody deleted it"
        raise JournalCorrupt(message, slot=missing)

    def _absorb(self, body: bytes) -> None:
        """Fold the bytes of the next slot, or pass it over if it is damaged and a later entry says so."""
        slot = self.state.next_slot if self.state else 0
        digest = records.sha256(body)
        try:
            entry = records.decode_entry(body, slot)
            self.state = history.apply(self.state, entry, digest)
            self._news.append(entry)
        except RecordError as problem:
            if self.state is not None and self._voided(slot, digest):
                self.state = history.pass_over(self.state, digest)
                return
            raise JournalCorrupt(f"journal slot {slot} cannot be believed: {problem}", slot=slot) from problem

    def _voided(self, slot: int, digest: str) -> bool:
        """Whether a later entry says that this damaged slot is passed over."""
        for entry in self._later(slot + 1):
            if isinstance(entry, records.Void) and (entry.void_slot, entry.void_sha256) == (slot, digest):
                return True
        return False

    def _later(self, slot: int) -> Iterator[AnyEntry]:
        while (body := self._slot(slot)) is not None:
            with contextlib.suppress(RecordError):  # a second damaged slot is judged when the replay gets there
                yield records.decode_entry(body, slot)
            slot += 1

    # ------------------------------------------------------------------------------------- appending

    def append(self, derive: Derive[T], *, refresh: bool = True) -> AnyEntry | T:
        """Append what `derive(state)` drafts, or return the answer that it finds settled.

        `derive` is asked again after every slot that is lost. With `refresh=False` the first draft is made from the
        state as it stands, which saves a round trip and is as safe: a slot that was taken meanwhile is lost.
        Raises CommitUnknown, JournalCorrupt, history.Refused, StoreError.
        """
        self._resolve_pending()
        while True:
            if refresh:
                self.refresh()
            refresh = True
            draft = derive(self.state)
            if isinstance(draft, Settled):
                return draft.answer
            entry = self._complete(draft)
            body = records.canonical(entry)
            self._propose(entry.slot, body)
            if self.state is not None and self.state.digest == records.sha256(body):
                self._put_hint(entry)
                return entry

    def begin(self) -> State:
        """The state of the run, which begins here if there is none yet."""

        def derive(state: State | None) -> Draft | Settled[None]:
            if state is not None:
                return Settled(None)
            kind = "create" if self._store.all_clients_create or self._refuses_second_create() else "ballots"
            return Draft(records.Genesis, 0, {"registers": kind})

        self.append(derive)
        assert self.state is not None
        return self.state

    def _complete(self, draft: Draft) -> AnyEntry:
        state = self.state
        entry = draft.kind(
            run_id=state.run_id if state else new_nonce(),
            slot=state.next_slot if state else 0,
            prev=state.digest if state else None,
            attempt=draft.attempt,
            head=_NO_HEAD,
            written_by=whoami(),
            nonce=new_nonce(),
            wall_time=wall_time(),
            **draft.fields,
        )
        return msgspec.structs.replace(entry, head=history.advance(state, entry).head)

    def _propose(self, slot: int, body: bytes) -> None:
        register = self._register(slot)
        self._pending = (slot, body)
        try:
            decided = register.propose(layout.slot_key(slot), body)
        except StoreError:
            self._pending = None  # refused before anything could land
            raise
        self._pending = None
        self._absorb(decided)

    def _resolve_pending(self) -> None:
        """An entry whose outcome is unknown may still land: its own bytes, to its own slot, before anything else."""
        if self._pending is not None:
            slot, body = self._pending
            if (self.state.next_slot if self.state else 0) == slot:
                try:
                    self._propose(slot, body)
                except StoreError as problem:  # refused this time; what was sent the first time may land all the same
                    self._pending = (slot, body)
                    message = f"whether an earlier entry was written to slot {slot} is still not known: {problem}"
                    raise CommitUnknown(message, key=layout.slot_key(slot)) from problem
            self._pending = None

    def _register(self, slot: int) -> Register:
        if slot == 0:
            by_create = self._store.all_clients_create
        else:
            assert self.state is not None
            by_create = self.state.registers == "create"
        if not by_create:
            return BallotRegister(self._store, self._patience)
        if not self._store.creates_exclusively:
            message = (
                f"this run decides by conditional create, which this client of {self._store.url} does not have. "
                "It may report and read, but not open attempts or drive: use the client that began the run"
            )
            raise StoreUnsuited(message, key=layout.slot_key(slot))
        return CreateRegister(self._store, self._patience)

    def _refuses_second_create(self) -> bool:
        """Whether the server really refuses: a client may ask for a condition that the server ignores."""
        if not self._store.creates_exclusively:
            return False
        key = layout.probe_key(new_nonce())

        def probe() -> bool:
            self._store.create(key, b'{"probe":1}')
            second = self._store.create(key, b'{"probe":2}')
            return not second and self._store.read(key) == b'{"probe":1}'

        refuses = retrying(probe, self._patience)
        try:
            self._store.delete([key])
        except StoreError as problem:
            log.debug("%s could not be deleted, and stays: %s", key, problem)
        return refuses

    def _put_hint(self, entry: AnyEntry) -> None:
        hint = records.Hint(run_id=entry.run_id, slot=entry.slot)
        try:
            self._store.put(layout.HINT, records.canonical(hint))
        except StoreError as problem:
            log.debug("the hint could not be written, which costs readers a few requests: %s", problem)
