"""The worker: one rank's side of the protocol.

Rules a change must keep:
- Input is refused before anything is written; a report is refused at a step that is not above the one before it.
- FIFO: a marker or farewell is published only after the one before it was acknowledged. What could not be published
  waits in the outbox, with its bytes fixed, and goes first next time.
- A report never tells another story than the journal.
- Another process never wears this one's seat: a forked child is told so at its first call.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from tallymark import layout, records
from tallymark.checkpoint import Checkpoint, Manifest
from tallymark.driver import Driver, Poll
from tallymark.errors import CommitUnknown, InvalidInput, StepAborted, StoreError, Superseded, UsageError, WaitTimeout
from tallymark.fate import Fates
from tallymark.handle import Report
from tallymark.history import AttemptFact, State
from tallymark.host import Host
from tallymark.journal import Draft, Settled
from tallymark.offer import Offer, Place, prepare, put_into_words, save
from tallymark.records import FileFact, to_plain
from tallymark.register import retrying
from tallymark.values import legible

log = logging.getLogger("tallymark")

DRIVE_AFTER_S = 5.0
"""How long rank r watches a silent journal before it drives: DRIVE_AFTER_S x (1 + log2(r + 1))."""
DRIVE_AGAIN_S = 0.1
"""The same, once it had to drive and nobody else has since."""
WAIT_FASTEST_S = 0.01
WAIT_SLOWEST_S = 1.0


class Worker:
    """One rank of a run, seated in an attempt. Made by `tallymark.join`; leave it, or use it in a `with`.

    `base` is the Manifest that all ranks of the attempt resume from, or None; `first_step` the first step to train.
    """

    def __init__(
        self,
        *,
        place: Place,
        driver: Driver,
        host: Host | None,
        rank: int,
        attempt: AttemptFact,
        nonce: str,
        base: Manifest | None,
        on_error: Literal["raise", "warn"],
    ) -> None:
        self.rank = rank
        self.world_size = attempt.world_size
        self.attempt = attempt.number
        self.base = base
        self.first_step = base.step + 1 if base else 0
        self._place = place
        self._store = place.store
        self._patience = place.patience
        self._driver = driver
        self._host = host
        self._nonce = nonce
        self._on_error = on_error
        self._fates = Fates(attempt.number)
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._left = False  # reports nothing more
        self._gone = False  # ... and has said so
        self._finishing = False
        self._drives = False  # the last decision was reached by driving ourselves: nobody else does
        self._last_step: int | None = None
        self._last: tuple[Offer, tuple[FileFact, ...]] | None = None
        self._outbox: list[tuple[str, bytes]] = []
        self._untold: list[int] = []

    # ------------------------------------------------------------------------------------- reporting

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
        *,
        step: int,
        upload: Literal["foreground"] = "foreground",
    ) -> Report:
        """Report a step: this rank's metrics, and its part of the checkpoint if it has one.

        Every rank reports every step, in ascending order. `checkpoint` is a folder, a file, `Checkpoint.from_directory`
        or `Checkpoint.at`; local files are copied before the call returns, and left alone. Returns when this rank's
        word is published; `.wait()` for the step's fate. The same report again is the same report.

        Raises InvalidInput (also a ValueError), FileNotFoundError and UsageError before anything is written;
        Superseded; StoreError or OSError if the shard could not be saved, unless `on_error="warn"`: then it is logged,
        and in either case the step is aborted for all ranks, quoting the cause. StoreError also if only this rank's
        word could not be published: it is kept, and the same report again, or any later call, sends it first. An abort
        of an earlier step that nobody waited for is logged as a warning.
        """
        self._check("report")
        if upload != "foreground":
            raise InvalidInput(f"upload={upload!r}: this version knows 'foreground' only")
        number = layout.check_step(step)
        plain = to_plain(metrics, "metrics")
        with self._lock:
            offer = prepare(plain, checkpoint, layout.checkpoint_prefix(number, self.attempt), self._place)
            if number == self._last_step and self._last is not None and offer.repeats(*self._last):
                failure, unpublished = None, self._publish()
            else:
                self._check_ascends(number)
                self._hear()
                failure, unpublished = self._save(number, offer)
                self._untold.append(number)
            if self._host is not None:
                self._host.nudge()
        if failure is not None:
            if self._on_error == "raise" or not isinstance(failure, StoreError | OSError):
                raise failure
            log.warning("rank %s could not save step %s, which will be aborted: %s", self.rank, number, failure)
        elif unpublished is not None:
            if self._on_error == "raise":
                raise unpublished
            told = (
                "rank %s saved its part of step %s, but its word is not published yet: its next call sends it first: %s"
            )
            log.warning(told, self.rank, number, unpublished)
        return Report(self, number)

    def _save(self, step: int, offer: Offer) -> tuple[Exception | None, StoreError | None]:
        """Save the shard, and publish the marker that says so or says why not; what stopped the one and the other."""
        began = time.monotonic()
        if offer.files:  # from the first byte on the step is spent: what is sent now may land at any time
            self._last_step, self._last = step, None
        saved: tuple[str | None, tuple[FileFact, ...]] = (None, ())
        failure: BaseException | None = None
        try:
            saved = save(offer, layout.checkpoint_prefix(step, self.attempt), self._place)
        except BaseException as problem:
            if not offer.files and not isinstance(problem, StoreError):
                raise  # what the caller named is not there, or not to be adopted: nothing was written
            failure = problem  # whatever it is, the others must hear of it
        self._last_step = step
        self._last = None if failure else (offer, saved[1])
        self._outbox.append(
            put_into_words(
                offer,
                attempt=self.attempt,
                step=step,
                rank=self.rank,
                seat=self._nonce,
                saved=saved,
                failure=failure,
                took_s=time.monotonic() - began,
            )
        )
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # an interrupt: the `failed` marker goes out with the next word, at the latest the farewell
        return failure, self._publish()

    def _publish(self, limit_s: float = math.inf) -> StoreError | None:
        """Send what waits in the outbox, oldest first; the error that stopped it, if one did."""
        until = self._patience.clock() + min(limit_s, self._patience.timeout_s)
        try:
            while self._outbox:
                key, body = self._outbox[0]
                retrying(partial(self._store.put, key, body), self._patience, until=until)
                del self._outbox[0]
        except StoreError as problem:
            return problem
        return None

    def _check_ascends(self, step: int) -> None:
        if self._last_step is not None and step <= self._last_step:
            raise InvalidInput(
                f"rank {self.rank} reports step {step} after step {self._last_step}: the steps of an attempt ascend"
                + (", and a step is reported once, with one content" if step == self._last_step else "")
            )
        if step < self.first_step:
            raise InvalidInput(
                f"rank {self.rank} reports step {step}, but this attempt resumed from step {self.first_step - 1}: "
                f"train from worker.first_step ({self.first_step})"
            )

    # ------------------------------------------------------------------------------------- hearing

    def _hear(self) -> None:
        """Learn what became of earlier steps; tell of aborts that nobody waited for; publish what is left over."""
        try:
            self._fates.follow(self._driver.follow())
        except StoreError as problem:
            if self._on_error == "raise":
                raise
            log.debug(
                "rank %s could not look at the journal, and asks again at the next report: %s", self.rank, problem
            )
        self._tell_aborts()
        if self._fates.superseded_by is not None:
            raise self._fates.superseded()
        if self._fates.finished is not None:
            raise UsageError(f"the run was finished ({self._fates.finished}): launch again to train on")
        unpublished = self._publish()
        if unpublished is not None and self._on_error == "raise":
            raise unpublished

    def _tell_aborts(self) -> None:
        """Log, once, the aborts that nobody waited for."""
        for step in [step for step in self._untold if self._fates.settled(step)]:
            self._untold.remove(step)
            if self._fates.aborted(step):
                try:
                    self._fates.commit(step)
                except (StepAborted, Superseded) as told:
                    log.warning("rank %s: %s", self.rank, told)

    def _done(self, step: int) -> bool:
        self._check("done", after_leaving=True)
        with self._lock:
            self._fates.follow(self._driver.follow())
            return self._fates.settled(step)

    def _wait(self, step: int, timeout_s: float | None) -> Manifest:
        self._check("wait", after_leaving=True)
        clock = self._patience.clock
        start = quiet_since = clock()
        patience_s = (DRIVE_AGAIN_S if self._drives else DRIVE_AFTER_S) * (1 + math.log2(self.rank + 1))
        pause, asked, looked, hosted = WAIT_FASTEST_S, False, False, True
        limit: object = timeout_s
        if limit is not None and (not isinstance(limit, int | float) or not limit >= 0):
            raise InvalidInput(f"timeout_s={timeout_s!r}: a number of seconds, or None, is wanted")
        while True:
            with self._lock:
                if not looked and clock() - quiet_since > patience_s / 5:
                    looked, hosted = True, not self._host_left()
                if clock() - quiet_since > (patience_s if hosted else patience_s / 5):
                    entries = list(self._poll().entries)
                    self._drives |= bool(entries)
                else:
                    entries = self._driver.follow()
                    self._drives &= not entries
                self._fates.follow(entries)
                if self._fates.settled(step):
                    if step in self._untold:
                        self._untold.remove(step)
                    return Manifest.of(self._fates.commit(step), self._store, self._place.open_data, self._patience)
                unpublished = self._publish(limit_s=WAIT_SLOWEST_S)
                if unpublished is not None and not unpublished.retryable:
                    raise unpublished  # the step waits for this rank's own word
                if timeout_s is not None and clock() - start >= timeout_s and (asked or not entries):
                    if asked:
                        missing = self._driver.who_is_missing()
                        raise WaitTimeout(
                            f"step {step} was not decided within {timeout_s:g} s{missing}; it is still open"
                        )
                    asked = True  # one look of our own, so that the error can say who is missing
                    quiet_since = -math.inf
                    continue
            if entries:
                quiet_since, pause = clock(), WAIT_FASTEST_S
            left = math.inf if timeout_s is None else max(0.0, start + timeout_s - clock())
            self._patience.sleep(min(pause, left))
            pause = min(max(WAIT_SLOWEST_S, self.world_size / 2000), pause * 1.3)

    def _host_left(self) -> bool:
        """Whether rank 0, which hosts the driver unless told otherwise, has said farewell."""
        prefix = layout.members_prefix(self.attempt, 0)
        members = [
            layout.parse_member(key) for key, _ in retrying(lambda: list(self._store.list(prefix)), self._patience)
        ]
        return any(member is not None and member.left for member in members)

    def _poll(self) -> Poll:
        """Drive once. An append whose outcome is not known yet is not the end: the next poll asks again."""
        try:
            poll = self._driver.poll()
            self._driver.tell(poll)
            return poll
        except CommitUnknown as problem:
            log.warning("rank %s drives on: %s", self.rank, problem)
            return Poll((), moved=True)

    # ------------------------------------------------------------------------------------- leaving

    def leave(self) -> None:
        """Say farewell: this rank reports nothing more. Once it has been said, calling it again does nothing.

        What waits in the outbox is published first. The rank that hosts the driver stays until every open step is
        decided or past its deadline, and logs who it waits for. Raises StoreError if the last words could not be
        published; calling it again tries again.
        """
        self._leave("left", linger=True)

    def finish(self, status: str = "completed") -> None:
        """Leave; and, on rank 0, end the run with `status` once every open step is decided.

        A later launch may continue the run. Raises Superseded, UsageError (finished with another status), and
        StoreError or CommitUnknown, after which it may be called again.
        """
        text: object = status
        if not isinstance(text, str) or not 0 < len(text) <= 200 or not text.isprintable():
            raise InvalidInput(f"status={text!r:.60}: a short text is wanted, such as 'completed'")
        self._check("finish", after_leaving=self._finishing)
        self._finishing = True
        self._leave(f"finished: {status}", linger=True, drive=self.rank == 0)
        if self.rank == 0:
            self._end(status)

    def _end(self, status: str) -> None:
        def derive(state: State | None) -> Draft | Settled[None]:
            live = state.live if state else None
            if state is None or live is None or live.number != self.attempt or state.finished is not None:
                return Settled(None)
            return Draft(records.Finish, self.attempt, {"status": status})

        with self._lock:
            self._driver.journal.append(derive)
            self._fates.follow(self._driver.follow())
        if self._fates.superseded_by is not None:
            raise self._fates.superseded()
        if self._fates.finished != status:
            raise UsageError(f"attempt {self.attempt} was finished before, as {self._fates.finished!r}")

    def _leave(self, why: str, *, linger: bool, drive: bool = False) -> None:
        if self._gone:
            return
        self._check("leave", after_leaving=True)
        with self._lock:
            if not self._left:
                self._left = True
                farewell = records.Farewell(
                    attempt=self.attempt,
                    rank=self.rank,
                    nonce=self._nonce,
                    last_step=self._last_step,
                    why=legible(why, 500),
                )
                key = layout.farewell_key(self.attempt, self.rank, self._nonce)
                self._outbox.append((key, records.canonical(farewell)))
            unpublished = self._publish()
        if self._host is not None:
            self._host.stop()
        if unpublished is not None:
            raise unpublished
        self._gone = True
        if not linger:
            return
        with self._lock:
            self._fates.follow(self._driver.follow())
        if drive or self._host is not None:
            while self._lingers():
                self._patience.sleep(WAIT_FASTEST_S * 5)
        self._tell_aborts()
        if self._untold:
            log.info("rank %s left before it heard what became of steps %s", self.rank, self._untold)

    def _lingers(self) -> bool:
        """Drive on: whether a step is still open."""
        with self._lock:
            poll = self._poll()
            self._fates.follow(poll.entries)
        return self._fates.superseded_by is None and (poll.moved or poll.step is not None)

    def __enter__(self) -> Self:
        self._check("with")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.leave()
            return
        try:
            self._leave(f"{kind.__name__}: {problem}", linger=False)
        except Exception as second:  # noqa: BLE001  the first exception is the one to be seen
            log.warning("rank %s could not say farewell: %s", self.rank, second)

    def _check(self, call: str, *, after_leaving: bool = False) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                f"{call}: this is a forked child (pid {os.getpid()}) of the process that joined (pid {self._pid}); "
                "join anew in the child, or start it with 'spawn'"
            )
        if self._left and not after_leaving:
            raise UsageError(f"{call}: rank {self.rank} has left attempt {self.attempt}; join with a new launch id")

    def __repr__(self) -> str:
        return f"<Worker rank {self.rank} of {self.world_size}, attempt {self.attempt} of {self._store.url}>"
