"""A proposer, moved one answer at a time: the real code, run again against the answers that it got so far.

This file alone knows how. Rules a change must keep:
- The code under test is called, never imitated, and notices nothing: it sees a store, a clock, chance and a nonce.
- It must be deterministic in these; a run that asks other questions than the recorded one is an error.
- Time passes only in pauses, one unit each, so that patience is a number of pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from tallymark.errors import CommitUnknown, StoreDenied, StoreError
from tallymark.register import Patience, Register
from tallymark.store.port import Failed, Listed, Store

KEY = "journal/0000000000.json"
Subject: TypeAlias = Callable[[Store, Patience, Callable[[], str]], Register]
"""What makes a register of a store, patience and a source of nonces."""


class Op(NamedTuple):
    """A request that a proposer waits for."""

    verb: str
    key: str
    body: bytes = b""


class Answer(NamedTuple):
    """What it is told: `ok` with a value, `lost`, or `denied`."""

    word: str
    value: Any = None


LOST, DENIED, DONE = Answer("lost"), Answer("denied"), Answer("ok")


class Asks(BaseException):
    """The recorded answers are used up. No Exception, so that no handler in the code under test may take it."""

    def __init__(self, op: Op) -> None:
        super().__init__(op)
        self.op = op


class ReplayStore:
    """A store that answers from a record."""

    url = "replay://"
    creates_exclusively = True
    all_clients_create = False
    lists_in_order = True
    visibility_delay_s = 0.0

    def __init__(self, record: Sequence[tuple[Op, Answer]]) -> None:
        self._record = iter(record)

    def _ask(self, op: Op) -> Any:
        asked, answer = next(self._record, (None, DONE))
        if asked is None:
            raise Asks(op)
        assert asked == op, f"not deterministic: asked {op} where it had asked {asked}"
        if answer == LOST:
            raise StoreError("the reply was lost", key=op.key, retryable=True)
        if answer == DENIED:
            raise StoreDenied("refused", key=op.key)
        return answer.value

    def read(self, key: str) -> bytes | None:
        body: bytes | None = self._ask(Op("read", key))
        return body

    def create(self, key: str, body: bytes) -> bool:
        return bool(self._ask(Op("create", key, body)))

    def put(self, key: str, body: bytes) -> None:
        self._ask(Op("put", key, body))

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        yield from (Listed(key, 1) for key in self._ask(Op("list", prefix)))

    def delete(self, keys: Sequence[str]) -> Sequence[Failed]:
        raise AssertionError("a register deletes nothing")


Record: TypeAlias = tuple[tuple[Op, Answer], ...]


def play(subject: Subject, record: Record, *, nonce: str, value: bytes, pauses: int) -> Op | bytes | str:
    """Where a proposal of `value` stands after these answers: its next request, the bytes that it returned,
    `unknown` for CommitUnknown, or `refused` for a StoreError.
    """
    now = 0.0

    def sleep(pause_s: float) -> None:
        nonlocal now
        now += pause_s

    patience = Patience(pauses, first_pause_s=1, longest_pause_s=1, clock=lambda: now, sleep=sleep, random=lambda: 1.0)
    try:
        return subject(ReplayStore(record), patience, lambda: nonce).propose(KEY, value)
    except Asks as asks:
        return asks.op
    except CommitUnknown:
        return "unknown"
    except StoreError:
        return "refused"
