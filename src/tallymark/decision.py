"""From the barrier's verdict to the journal's entry: what a decision says, for readers and for people."""

from __future__ import annotations

from tallymark import records
from tallymark.barrier import Abort, Commit
from tallymark.journal import Draft
from tallymark.observe import Watch, is_adopted
from tallymark.records import Culprit, to_ranges

QUOTED = 32
NEVER_SEATED = "it never took its seat: did it start, with the same launch id and world size? See its own log"


def commit_draft(watch: Watch, step: int, verdict: Commit) -> Draft:
    """The commit entry of a step, whose tally is written."""
    seen = watch.steps[step]
    first = seen.bodies[verdict.first.digest]
    assert first is not None  # the barrier commits nothing unread
    saved = None
    if verdict.lead is not None:
        lead = seen.bodies[verdict.lead.digest]
        assert lead is not None and lead.path is not None
        saved = records.Saved(
            path=lead.path,
            adopted=is_adopted(lead.path),
            kind=lead.kind,
            ranks=to_ranges(verdict.ranks),
            files=verdict.files,
            bytes=verdict.bytes,
        )
    fields = {
        "step": step,
        "checkpoint": saved,
        "reporting_ranks": ((0, watch.attempt.world_size - 1),),
        "metrics": first.metrics,
        "tally_digest": seen.tally,
    }
    return Draft(records.Commit, watch.attempt.number, fields)


def abort_draft(watch: Watch, step: int, verdict: Abort) -> Draft:
    """The abort entry of a step, quoting the ranks behind it with their hosts. Reads what it quotes."""
    culprits: list[Culprit] = []
    for name, body in watch.read_bodies(step, verdict.quote[:QUOTED]).items():
        detail = body.cause or (f"names {body.path} ({body.kind})" if body.path else "metrics only")
        culprits.append(Culprit(rank=name.first, host=body.host, detail=f"{detail} (pid {body.pid})"))
    silent = tuple(rank for rank in verdict.ranks if rank not in {culprit.rank for culprit in culprits})[:QUOTED]
    for rank, host in watch.read_hosts(silent).items():
        culprits.append(Culprit(rank=rank, host=host, detail=watch.last_words(rank) if host else NEVER_SEATED))
    fields = {
        "step": step,
        "reason": verdict.reason,
        "ranks": to_ranges(verdict.ranks),
        "culprits": tuple(culprits),
        "detail": verdict.detail,
    }
    return Draft(records.Abort, watch.attempt.number, fields)
