"""Every error that tallymark raises, as one tree, ordered by what the handler does about it.

Attributes are the contract; the text is help for a person.
A message names the value that was wrong, the rank and host where that is known, and the next thing to do.

    TallymarkError
    ├── InvalidInput            fix the call (also a ValueError); nothing was written
    │   └── IdentityError       fix how the ranks are told who they are
    ├── UsageError              fix the order of calls (also a RuntimeError)
    ├── StoreError              look at the store; `.retryable` says whether to try again
    │   ├── StoreDenied         credentials or permissions: retrying will not help
    │   └── StoreUnsuited       this store or client cannot do what the run asks
    ├── RecordError             bytes in the store are not a record that this version can believe
    │   └── JournalCorrupt      ... and they stand in the journal: nobody goes past them
    ├── CommitUnknown           the outcome of a write could not be learned; ask the journal later
    ├── JoinError               this process has no seat in the attempt
    │   ├── RankTaken           another process holds the rank
    │   └── JoinTimeout         the attempt was not opened in time
    ├── Superseded              a newer attempt rules the run: stop this process
    ├── StepAborted             the step is decided, and not committed
    │   └── BarrierTimeout      ... because ranks were missing at the deadline (also a TimeoutError)
    ├── WaitTimeout             the caller's own patience ended; the step is still open (also a TimeoutError)
    └── CheckpointDamaged       files of a committed checkpoint are not what its inventory says
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TallymarkError(Exception):
    """The root of the tree. Survives pickling, attributes and all, so that a process pool can hand it on."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[TallymarkError], args: tuple[Any, ...], attributes: dict[str, Any]) -> TallymarkError:
    error = kind.__new__(kind, *args)
    error.args = args  # an error that is a TimeoutError too is an OSError, whose `__new__` leaves them out
    error.__dict__.update(attributes)
    return error


class InvalidInput(TallymarkError, ValueError):
    """A value that the caller passed is refused. Nothing was written."""


class IdentityError(InvalidInput):
    """Rank, world size or launch id are missing, malformed, or contradict one another."""


class UsageError(TallymarkError, RuntimeError):
    """A call at the wrong time: after leaving, in a forked child, twice."""


class StoreError(TallymarkError):
    """The store did not do what was asked, and whether it will have done so later is unknown.

    `key` is the object concerned. `retryable` is True when the same call may succeed later.
    The backend's own exception is the `__cause__`.
    """

    def __init__(self, message: str, *, key: str, retryable: bool) -> None:
        super().__init__(message)
        self.key = key
        self.retryable = retryable


class StoreDenied(StoreError):
    """The store refuses these credentials, or the bucket does not exist. Trying again will not help."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message, key=key, retryable=False)


class StoreUnsuited(StoreError):
    """This store, or this client of it, cannot keep a promise that is needed."""

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message, key=key, retryable=False)


class RecordError(TallymarkError):
    """Bytes that are not a record this version can believe: torn, foreign, or of a newer format."""


class JournalCorrupt(RecordError):
    """A journal slot holds what the rules of the journal refuse. `slot` says which."""

    def __init__(self, message: str, *, slot: int) -> None:
        super().__init__(message)
        self.slot = slot


class CommitUnknown(TallymarkError):
    """A write to a register was tried until the limit and its outcome is not known.

    It may still land. Nothing else was tried in its place and nothing was cleaned up.
    Reading the journal later tells the outcome. `key` is the register.
    """

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class JoinError(TallymarkError):
    """This process could not take its seat."""


class RankTaken(JoinError):
    """Another process already holds this rank in this attempt."""

    def __init__(self, message: str, *, rank: int, host: str, pid: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.pid = pid


class JoinTimeout(JoinError, TimeoutError):
    """The attempt of this launch was not opened in time; rank 0 opens it."""


class Superseded(TallymarkError):
    """A newer attempt rules the run. `attempt` is this process's, `live_attempt` the ruling one."""

    def __init__(self, message: str, *, attempt: int | None, live_attempt: int) -> None:
        super().__init__(message)
        self.attempt = attempt
        self.live_attempt = live_attempt


class StepAborted(TallymarkError):
    """The step was decided and is not committed.

    `reason` is one of the words of the barrier's rules. `ranks` are the culprits, and `hosts` theirs, in the same
    order ("" where unknown).
    """

    def __init__(
        self,
        message: str,
        *,
        step: int,
        attempt: int,
        reason: str,
        ranks: Sequence[int] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.step = step
        self.attempt = attempt
        self.reason = reason
        self.ranks = tuple(ranks)
        self.hosts = tuple(hosts)


class BarrierTimeout(StepAborted, TimeoutError):
    """The step was aborted because ranks were missing at the deadline: `ranks` names them."""


class WaitTimeout(TallymarkError, TimeoutError):
    """The `timeout_s` given to a wait passed before the step was decided. The step is still open."""


class CheckpointDamaged(TallymarkError):
    """Files of a committed checkpoint are missing or differ. `paths` names them."""

    def __init__(self, message: str, *, paths: Sequence[str]) -> None:
        super().__init__(message)
        self.paths = tuple(paths)
