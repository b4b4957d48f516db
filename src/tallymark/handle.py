"""A report, as its rank holds it. The step's fate is the journal's, and the same for every rank."""

from __future__ import annotations

from typing import Protocol

from tallymark.checkpoint import Manifest


class Asked(Protocol):
    """Whoever can say what became of a step: the worker."""

    @property
    def rank(self) -> int: ...
    def _wait(self, step: int, timeout_s: float | None) -> Manifest: ...
    def _done(self, step: int) -> bool: ...


class Report:
    """A rank's report of a step."""

    def __init__(self, worker: Asked, step: int) -> None:
        self._worker = worker
        self.step = step

    def wait(self, timeout_s: float | None = None) -> Manifest:
        """The manifest of the step, once it is committed.

        Without a timeout it waits for the decision, driving if nobody else does; the attempt's `barrier_timeout_s`
        bounds that. Raises StepAborted, BarrierTimeout, Superseded; WaitTimeout if `timeout_s` passes first, and the
        step is still open then; StoreError.
        """
        return self._worker._wait(self.step, timeout_s)

    def done(self) -> bool:
        """Whether the step is decided, one way or the other. Looks at the journal once."""
        return self._worker._done(self.step)

    def __repr__(self) -> str:
        return f"<Report of step {self.step} by rank {self._worker.rank}>"
