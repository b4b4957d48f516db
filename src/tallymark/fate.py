"""What became of the steps of one attempt, as its ranks learn it from the journal.

Pure but for the entries it is fed, in order. A step has one fate, and no waiter hangs:

- its own commit or abort;
- aborted as `skipped`, when a higher step was decided first;
- superseded, when a newer attempt was opened; aborted as `finished`, when the run ended first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from tallymark.errors import BarrierTimeout, StepAborted, Superseded
from tallymark.records import Abort, AnyEntry, Attempt, Commit, Finish, from_ranges


class Fates:
    """The fates of the steps of attempt `number`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.superseded_by: int | None = None
        self.finished: str | None = None
        self._decided: dict[int, Commit | Abort] = {}
        self._highest: Commit | Abort | None = None

    def follow(self, entries: Iterable[AnyEntry]) -> None:
        """Take in the journal's next entries."""
        for entry in entries:
            if isinstance(entry, Attempt) and entry.attempt > self.number:
                self.superseded_by = entry.attempt
            elif entry.attempt != self.number:
                continue
            elif isinstance(entry, Commit | Abort):
                self._decided[entry.step] = self._highest = entry
            elif isinstance(entry, Finish):
                self.finished = entry.status

    def settled(self, step: int) -> bool:
        """Whether the step has its fate."""
        ended = self.superseded_by is not None or self.finished is not None
        return ended or (self._highest is not None and self._highest.step >= step)

    def aborted(self, step: int) -> bool:
        """Whether the step was decided, and not committed."""
        return self.settled(step) and not isinstance(self._decided.get(step), Commit)

    def commit(self, step: int) -> Commit:
        """The commit of a settled step. Raises what it became instead: StepAborted, BarrierTimeout, Superseded."""
        entry = self._decided.get(step)
        if isinstance(entry, Commit):
            return entry
        if entry is not None:
            _raise(entry)
        if self._highest is not None and self._highest.step > step:
            message = f"step {step} was skipped: step {self._highest.step} was decided before it was complete"
            raise StepAborted(message, step=step, attempt=self.number, reason="skipped")
        if self.superseded_by is not None:
            raise self.superseded()
        message = f"step {step} was not complete when the run was finished ({self.finished})"
        raise StepAborted(message, step=step, attempt=self.number, reason="finished")

    def superseded(self) -> Superseded:
        """The error for a process of this attempt once a newer one rules the run."""
        assert self.superseded_by is not None
        message = f"attempt {self.number} is superseded by attempt {self.superseded_by}: stop this process"
        return Superseded(message, attempt=self.number, live_attempt=self.superseded_by)


def _raise(entry: Abort) -> NoReturn:
    hosts = {culprit.rank: culprit.host for culprit in entry.culprits}
    ranks = from_ranges(entry.ranks)
    quoted = "; ".join(
        f"rank {c.rank}{f' on {c.host}' if c.host else ''}{f': {c.detail}' if c.detail else ''}"
        for c in entry.culprits[:5]
    )
    message = f"step {entry.step} was aborted ({entry.reason}): {entry.detail}" + (f" [{quoted}]" if quoted else "")
    kind = BarrierTimeout if entry.reason == "timeout" else StepAborted
    raise kind(
        message,
        step=entry.step,
        attempt=entry.attempt,
        reason=entry.reason,
        ranks=ranks,
        hosts=[hosts.get(rank, "") for rank in ranks],
    )
