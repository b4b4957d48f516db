"""The barrier: what follows, for one step of one attempt, from what was seen.

`decide(observation) -> Wait | Look | Commit | Abort` is pure: no store, clock, randomness or logging.
The rules stand in this order, and the order is part of the protocol (`docs/spec/barrier.md`, B1-B8):

1. two processes speak for one rank             -> abort `duplicate-rank` (or `rank-unknown`: no rank of the attempt)
2. a rank says that it failed                   -> abort `failed`
3. a rank is past this step and said nothing    -> abort `skipped`
4. a rank left before this step                 -> abort `left`
5. contributing ranks name different checkpoints -> abort `path-mismatch`
6. every rank has spoken: check the data        -> abort `marker-damaged`, `shard-conflict`, `shard-missing`,
                                                   `data-unreadable` (at the deadline); or commit
7. the deadline has passed                      -> abort `timeout`
8. otherwise                                    -> wait

One absence rule (B10): that something is *not* there counts only in a listing that began after the fact that makes its
absence matter was seen, and the store's visibility delay later. A verdict that would rest on less is a `Look`.
Moments are readings of any one clock that never goes back; they are only compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tallymark import layout
from tallymark.layout import MarkerName
from tallymark.records import Marker, to_ranges


class Listing(NamedTuple):
    """The files found under a checkpoint path, and the moment that the listing began."""

    began: float
    files: Mapping[str, int]


class Leave(NamedTuple):
    """A rank's farewell: its last step (None: it never reported), and the moment that it was seen."""

    last_step: int | None
    seen: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that a decision rests on.

    `world_size` is the attempt entry's. `markers`: names of this step's markers -> moment first seen.
    `later`: rank -> moment that a marker of it for a later step was first seen. `deadline`: the moment at which the
    step's deadline was found to have passed. `listed` and `lower`: the moments at which the newest finished listing of
    this step's markers, and of all open steps below it, began. `data`: listings by checkpoint path.
    `bodies`: marker bodies by the digest in the name; None for one whose bytes are not what the name says.
    `sizes`: what a direct look at a file found (None: absent). `unreadable`: adopted paths that cannot be looked at
    from here, and why; that is no evidence, and counts once the deadline has passed.
    """

    world_size: int
    step: int
    own_path: str
    markers: Mapping[MarkerName, float]
    later: Mapping[int, float] = field(default_factory=dict)
    farewells: Mapping[int, Leave] = field(default_factory=dict)
    deadline: float | None = None
    listed: float | None = None
    lower: float | None = None
    delay_s: float = 0.0
    data: Mapping[str, Listing] = field(default_factory=dict)
    bodies: Mapping[str, Marker | None] = field(default_factory=dict)
    sizes: Mapping[str, int | None] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


class Wait(NamedTuple):
    """Nothing can be said yet: these ranks are missing."""

    missing: tuple[int, ...]


class Look(NamedTuple):
    """These must be fetched before more can be said; they may be fetched side by side."""

    listing: bool = False
    lower: bool = False
    bodies: tuple[MarkerName, ...] = ()
    data: str | None = None
    files: tuple[str, ...] = ()


class Commit(NamedTuple):
    """The step is whole. `lead` is the lowest contributing rank's marker (None: nobody saved)."""

    first: MarkerName
    lead: MarkerName | None
    ranks: tuple[int, ...]
    files: int
    bytes: int


class Abort(NamedTuple):
    """The step will never be whole. `quote`: markers whose bodies tell a person more."""

    reason: str
    ranks: tuple[int, ...]
    detail: str
    quote: tuple[MarkerName, ...] = ()


Verdict: TypeAlias = Wait | Look | Commit | Abort


def decide(seen: Observation) -> Verdict:
    """What follows from the observation. Rules B1-B8 in order, none of them resting on an old absence.

    Without any marker of the step there is nothing to decide.
    """
    if not seen.markers:
        return Wait(tuple(range(seen.world_size)))
    names = sorted(seen.markers)
    covered = _covered(seen)
    verdict = (
        _stranger(seen, names)
        or _duplicate(names)
        or _failed(names)
        or _skipped(seen, covered)
        or _left(seen, covered)
        or _mismatch(names)
        or (_whole(seen, names) if len(covered) >= seen.world_size else _missing(seen))
    )
    return _lower_first(seen, covered, verdict)


def missing(seen: Observation) -> tuple[int, ...]:
    """The ranks that have said nothing about the step."""
    covered = _covered(seen)
    return tuple(rank for rank in range(seen.world_size) if rank not in covered)


def _covered(seen: Observation) -> set[int]:
    """The ranks that have said something about the step."""
    return {rank for name in seen.markers for rank in range(name.first, name.last + 1)}


def _lower_first(seen: Observation, covered: set[int], verdict: Verdict) -> Verdict:
    """B12: no decision before the steps below were listed once more, after this step's own facts were seen."""
    fresh = seen.lower is not None and seen.lower >= max(_facts(seen, covered)) + seen.delay_s
    if fresh or isinstance(verdict, Wait):
        return verdict
    if isinstance(verdict, Look):
        return verdict._replace(lower=True)
    return Look(lower=True)


def _facts(seen: Observation, covered: set[int]) -> Iterator[float]:
    """When each fact was seen that a verdict may rest on: a marker of the step, or why an absence matters."""
    yield from seen.markers.values()
    yield from _past(seen, covered).values()
    yield from _gone(seen, covered).values()
    if seen.deadline is not None and len(covered) < seen.world_size:
        yield seen.deadline


def _stranger(seen: Observation, names: list[MarkerName]) -> Verdict | None:
    """B1. A rank that the attempt does not have: its process and ours disagree about the world size."""
    strangers = tuple(name for name in names if name.last >= seen.world_size)
    if not strangers:
        return None
    ranks = tuple(rank for rank in _ranks_of(strangers) if rank >= seen.world_size)
    return Abort("rank-unknown", ranks, f"{_ranks(ranks)}: the attempt has {seen.world_size} only", strangers)


def _duplicate(names: list[MarkerName]) -> Verdict | None:
    """B1. Also one seat that says two different things: its word cannot be counted."""
    taken: dict[int, MarkerName] = {}
    for name in names:
        for rank in range(name.first, name.last + 1):
            other = taken.setdefault(rank, name)
            if other is not name and (other.seat != name.seat or _contradict(other, name)):
                who = "two processes speak" if other.seat != name.seat else "one process speaks twice, differently,"
                detail = f"{who} for rank {rank}"
                return Abort("duplicate-rank", (rank,), detail, (other, name))
    return None


def _contradict(one: MarkerName, other: MarkerName) -> bool:
    return "failed" not in (one.status, other.status)


def _failed(names: list[MarkerName]) -> Verdict | None:
    """B2, also beside a `saved` marker of the same seat whose reply was lost."""
    failed = tuple(name for name in names if name.status == "failed")
    if not failed:
        return None
    ranks = _ranks_of(failed)
    return Abort("failed", ranks, f"{_ranks(ranks)} failed to save", failed)


def _skipped(seen: Observation, covered: set[int]) -> Verdict | None:
    """B3."""
    past = _past(seen, covered)
    detail = f"{_ranks(tuple(past))} reported a later step and never this one"
    return _absent(seen, past, "skipped", detail)


def _past(seen: Observation, covered: set[int]) -> dict[int, float]:
    return {rank: moment for rank, moment in seen.later.items() if rank not in covered and rank < seen.world_size}


def _left(seen: Observation, covered: set[int]) -> Verdict | None:
    """B4."""
    gone = _gone(seen, covered)
    return _absent(seen, gone, "left", f"{_ranks(tuple(gone))} left without reporting this step")


def _gone(seen: Observation, covered: set[int]) -> dict[int, float]:
    return {
        rank: leave.seen
        for rank, leave in seen.farewells.items()
        if rank not in covered and rank < seen.world_size and (leave.last_step is None or leave.last_step < seen.step)
    }


def _mismatch(names: list[MarkerName]) -> Verdict | None:
    """B5."""
    first_of: dict[str, MarkerName] = {}
    saved = [name for name in names if name.status == "saved"]
    for name in saved:
        first_of.setdefault(name.where, name)
    if len(first_of) < 2:
        return None
    groups = "; ".join(_ranks(_ranks_of(name for name in saved if name.where == where)) for where in first_of)
    ranks = _ranks_of(saved)
    return Abort("path-mismatch", ranks, f"different checkpoints are named: {groups}", tuple(first_of.values()))


def _whole(seen: Observation, names: list[MarkerName]) -> Verdict:
    """B6: everybody has spoken, and nobody objected. Are the data there?"""
    saved = [name for name in names if name.status == "saved"]
    lead = saved[0] if saved else None
    first = names[0]
    wanted = tuple(name for name in dict.fromkeys((first, lead)) if name and name.digest not in seen.bodies)
    if wanted:
        return Look(bodies=wanted, data=seen.own_path if lead and seen.own_path not in seen.data else None)
    if damaged := _damaged(seen, (first, lead) if lead else (first,)):
        return damaged
    ranks = _ranks_of(saved)
    if lead is None:
        return Commit(first, None, (), 0, 0)
    path = _body(seen, lead).path
    assert path is not None
    listing = seen.data.get(path)
    if listing is None or listing.began < max(seen.markers.values()) + seen.delay_s:
        return _blind(seen, path, ranks, (lead,)) or Look(data=path)
    files = {name: size for name, size in listing.files.items() if layout.is_data(name)}
    claimed = (len(files), sum(files.values()), layout.fingerprint(files.items()))
    promised = (
        sum(name.files for name in saved),
        sum(name.bytes for name in saved),
        sum(name.sum for name in saved) % 2**64,
    )
    if claimed == promised and not _nested(files):
        return Commit(first, lead, ranks, len(files), sum(files.values()))
    return _compare(seen, saved, files, Commit(first, lead, ranks, 0, 0))


def _compare(seen: Observation, saved: list[MarkerName], files: Mapping[str, int], commit: Commit) -> Verdict:
    """The sums differ, or paths stand in each other's way: go by the bodies.

    A conflict comes first, since it makes `missing` meaningless.
    """
    unread = tuple(name for name in saved if name.digest not in seen.bodies)
    if unread:
        return Look(bodies=unread)
    if damaged := _damaged(seen, tuple(saved)):
        return damaged
    owner: dict[str, MarkerName] = {}
    expected: dict[str, tuple[int, str | None]] = {}
    for name in saved:
        for fact in _body(seen, name).files:
            if expected.setdefault(fact.path, (fact.size, fact.digest)) != (fact.size, fact.digest):
                both = tuple(dict.fromkeys((owner[fact.path], name)))
                ranks = tuple(item.first for item in both)
                detail = f"{_ranks(ranks)} wrote different files at the same path {fact.path!r}"
                return Abort("shard-conflict", ranks, detail, both)
            owner.setdefault(fact.path, name)
    if nested := _nested(expected):
        file, inside = nested
        both = tuple(dict.fromkeys((owner[file], owner[inside])))
        ranks = tuple(item.first for item in both)
        detail = f"{file!r} is a file and, for {inside!r}, a folder: no file system can hold both ({_ranks(ranks)})"
        return Abort("shard-conflict", ranks, detail, both)
    doubtful = [path for path, (size, _) in expected.items() if files.get(path) != size]
    unseen = tuple(path for path in doubtful if path not in seen.sizes)
    if unseen:
        return _blind(seen, _body(seen, saved[0]).path or "", commit.ranks) or Look(files=unseen)
    lost = [path for path in doubtful if seen.sizes[path] != expected[path][0]]
    if lost:
        shown = ", ".join(f"{path!r} ({seen.sizes[path]} of {expected[path][0]} bytes)" for path in lost[:5])
        ranks = tuple(sorted({owner[path].first for path in lost}))
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        return Abort("shard-missing", ranks, f"files are missing or short: {shown}{more}")
    return commit._replace(files=len(expected), bytes=sum(size for size, _ in expected.values()))


def _blind(seen: Observation, path: str, ranks: tuple[int, ...], quote: tuple[MarkerName, ...] = ()) -> Verdict | None:
    """The deadline has passed, and these adopted data could not be looked at: no evidence, and no more time."""
    if seen.deadline is None or path not in seen.unreadable:
        return None
    return Abort("data-unreadable", ranks, f"nobody could look at the data: {seen.unreadable[path]}", quote)


def _nested(paths: Mapping[str, object]) -> tuple[str, str] | None:
    """A path that another one needs as a folder, and that other one. An object store holds both; a disk does not."""
    for path in paths:
        at = path.find("/")
        while at >= 0:
            if path[:at] in paths:
                return path[:at], path
            at = path.find("/", at + 1)
    return None


def _damaged(seen: Observation, names: tuple[MarkerName, ...]) -> Abort | None:
    bad = tuple(dict.fromkeys(name for name in names if not _sound(seen.bodies[name.digest])))
    if not bad:
        return None
    ranks = tuple(name.first for name in bad)
    return Abort("marker-damaged", ranks, f"the marker of {_ranks(ranks)} does not hold what its name says")


def _sound(body: Marker | None) -> bool:
    """Whether a body can be believed: it is what the name says, and a rank that saved says where."""
    return body is not None and (body.path is not None or body.status != "saved")


def _body(seen: Observation, name: MarkerName) -> Marker:
    body = seen.bodies[name.digest]
    assert body is not None  # _damaged was asked first
    return body


def _missing(seen: Observation) -> Verdict:
    """B7, B8."""
    ranks = missing(seen)
    if seen.deadline is None:
        return Wait(ranks)
    verdict = _absent(
        seen, dict.fromkeys(ranks, seen.deadline), "timeout", f"{_ranks(ranks)} did not report before the deadline"
    )
    return verdict or Wait(ranks)


def _absent(seen: Observation, facts: Mapping[int, float], reason: str, detail: str) -> Verdict | None:
    """B10: these ranks are absent, and for each the moment of the fact that makes its absence matter."""
    if not facts:
        return None
    if seen.listed is None or seen.listed < max(facts.values()) + seen.delay_s:
        return Look(listing=True)
    return Abort(reason, tuple(sorted(facts)), detail)


def _ranks_of(names: Iterable[MarkerName]) -> tuple[int, ...]:
    """The ranks that markers speak for, ascending, each once."""
    return tuple(sorted({rank for name in names for rank in range(name.first, name.last + 1)}))


def _ranks(ranks: tuple[int, ...]) -> str:
    """Ranks as a person reads them: rank 3; ranks 1, 4-7; at most eight ranges."""
    return " ".join(_ranges(ranks))


def _ranges(ranks: tuple[int, ...]) -> Iterator[str]:
    ranges = to_ranges(ranks)
    yield "rank" if len(ranks) == 1 else "ranks"
    shown = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:8])
    yield shown + (" ..." if len(ranges) > 8 else "")
