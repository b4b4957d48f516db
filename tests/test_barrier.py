"""The barrier: the vectors, and properties that hold for every step that a driver may come upon."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark import inventory, layout, records
from tallymark.barrier import Abort, Commit, Leave, Listing, Look, Observation, Verdict, Wait, decide, missing
from tallymark.layout import MarkerName
from tallymark.records import FileFact, Marker

ROOT = Path(__file__).resolve().parents[1]
VECTORS = json.loads((ROOT / "conformance" / "vectors" / "barrier.json").read_text("utf-8"))["cases"]
STEP, ATTEMPT = 10, 2
OWN = layout.checkpoint_prefix(STEP, ATTEMPT)
PREFIX = layout.markers_prefix(ATTEMPT, STEP)
ABSENCE = ("skipped", "left", "timeout")

# ---- the vectors -----------------------------------------------------------------------------------------------------


def name_of(text: str) -> MarkerName:
    parsed = layout.parse_marker(PREFIX + text)
    assert parsed is not None, text
    return parsed[1]


def text_of(name: MarkerName) -> str:
    return layout.marker_key(ATTEMPT, STEP, name).removeprefix(PREFIX)


def observation_of(case: dict[str, Any]) -> Observation:
    given_ = case["observation"]
    plain = {
        key: given_[key]
        for key in ("world_size", "step", "own_path", "deadline", "listed", "lower", "delay_s", "sizes", "unreadable")
    }
    return Observation(
        **plain,
        markers={name_of(text): moment for text, moment in given_["markers"].items()},
        later={int(rank): moment for rank, moment in given_["later"].items()},
        farewells={int(rank): Leave(**leave) for rank, leave in given_["farewells"].items()},
        data={path: Listing(**listing) for path, listing in given_["data"].items()},
        bodies={
            digest: None if body is None else records.convert(body, Marker, digest)
            for digest, body in given_["bodies"].items()
        },
    )


def plain_of(verdict: Verdict) -> dict[str, Any]:
    match verdict:
        case Wait():
            return {"verdict": "wait", "missing": list(verdict.missing)}
        case Look():
            bodies = [text_of(name) for name in verdict.bodies]
            return verdict._asdict() | {"verdict": "look", "bodies": bodies, "files": list(verdict.files)}
        case Commit():
            lead = text_of(verdict.lead) if verdict.lead else None
            fields = verdict._asdict() | {"first": text_of(verdict.first), "lead": lead, "ranks": list(verdict.ranks)}
            return {"verdict": "commit"} | fields
        case Abort():
            quote = sorted(text_of(name) for name in verdict.quote)
            return {"verdict": "abort", "reason": verdict.reason, "ranks": list(verdict.ranks), "quote": quote}


@pytest.mark.rule("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B10", "B11", "B12", "B16")
@pytest.mark.parametrize("case", VECTORS, ids=[f"{case['rule']}-{case['name']}" for case in VECTORS])
def test_verdicts(case):
    assert plain_of(decide(observation_of(case))) == case["expected"]


def test_the_vectors_show_every_reason_and_every_kind_of_verdict():
    shown = {case["expected"].get("reason", case["expected"]["verdict"]) for case in VECTORS}
    assert shown == {
        "wait", "look", "commit", "duplicate-rank", "rank-unknown", "failed", "skipped", "left", "path-mismatch",
        "marker-damaged", "data-unreadable", "shard-conflict", "shard-missing", "timeout",
    }  # fmt: skip
    assert {case["rule"] for case in VECTORS} == {
        "B1",
        "B2",
        "B3",
        "B4",
        "B5",
        "B6",
        "B7",
        "B8",
        "B10",
        "B11",
        "B12",
        "B16",
    }


# ---- a small world with a driver in it -------------------------------------------------------------------------------


def word(
    rank: int,
    status: str,
    files: tuple[tuple[str, int, str], ...] = (),
    *,
    path: str = OWN,
    seat: int = 0,
    last: int | None = None,
) -> tuple[MarkerName, Marker]:
    """A marker's name and body. A file is (path, size, what is in it)."""
    last = rank if last is None else last
    body = Marker(
        attempt=ATTEMPT, step=STEP, first_rank=rank, last_rank=last, status=status, host=f"h{rank}", pid=1,
        kind="files",
        seats=tuple(f"{seat:04x}{r:012x}" for r in range(rank, last + 1)), path=path if status == "saved" else None,
        adopted=path != OWN, metadata={}, metrics={"rank": rank}, durations_s={}, cause="", version="0",
        files=tuple(FileFact(path=p, size=size, digest=records.sha256(what.encode())) for p, size, what in files),
    )  # fmt: skip
    return inventory.name_of(body, records.canonical(body)), body


@dataclass(frozen=True)
class World:
    """What is really there, once for all: whoever looks late enough sees it."""

    size: int
    words: tuple[tuple[MarkerName, Marker], ...]
    later: frozenset[int] = frozenset()
    leaves: dict[int, int | None] = field(default_factory=dict)
    late: bool = False
    damage: dict[str, int | None] = field(default_factory=dict)
    strangers: dict[str, int] = field(default_factory=dict)
    torn: frozenset[MarkerName] = frozenset()

    def files(self, path: str) -> dict[str, int]:
        claimed = {fact.path: fact.size for _, body in self.words if body.path == path for fact in body.files}
        there = claimed | {path: size for path, size in self.damage.items() if path in claimed}
        return {path: size for path, size in (there | self.strangers).items() if size is not None}

    def body(self, name: MarkerName) -> Marker | None:
        return None if name in self.torn else dict(self.words)[name]


def start(world: World, rng: random.Random, delay: float = 0.0) -> Observation:
    """All facts seen, at odd moments in an odd order; some things were looked at too early, or early enough."""
    words = list(world.words)
    rng.shuffle(words)

    def moment() -> float:
        return float(rng.randrange(1, 20))

    return Observation(
        world_size=world.size,
        step=STEP,
        own_path=OWN,
        markers={name: moment() for name, _ in words},
        later={rank: moment() for rank in sorted(world.later, key=lambda _: rng.random())},
        farewells={rank: Leave(last, moment()) for rank, last in world.leaves.items()},
        deadline=moment() if world.late else None,
        listed=rng.choice([None, moment(), 99.0]),
        lower=rng.choice([None, moment(), 99.0]),
        delay_s=delay,
        data={OWN: Listing(moment(), world.files(OWN))} if rng.random() < 0.3 else {},
        bodies={name.digest: world.body(name) for name, _ in words if rng.random() < 0.3},
    )


def fetched(world: World, seen: Observation, look: Look, now: float) -> Observation:
    """What a driver knows after it looked at what it was told to."""
    if look.listing:
        seen = replace(seen, listed=now, lower=now)
    if look.lower:
        seen = replace(seen, lower=now)
    if look.data is not None:
        seen = replace(seen, data={**seen.data, look.data: Listing(now, world.files(look.data))})
    lead = min((name for name in seen.markers if name.status == "saved"), default=None)
    place = world.files(dict(world.words)[lead].path or "") if lead else {}
    return replace(
        seen,
        bodies={**seen.bodies, **{name.digest: world.body(name) for name in look.bodies}},
        sizes={**seen.sizes, **{file: place.get(file) for file in look.files}},
    )


def steps(world: World, seen: Observation) -> Iterator[tuple[Observation, Verdict]]:
    """Decide, look, decide, until there is nothing to look at."""
    for turn in range(12):
        verdict = decide(seen)
        yield seen, verdict
        if not isinstance(verdict, Look):
            return
        assert verdict != Look(), "a look that asks for nothing"
        before, seen = seen, fetched(world, seen, verdict, 1_000.0 + turn)
        assert seen != before
    raise AssertionError("a driver would look for ever")


def outcome(world: World, seed: int = 0, delay: float = 0.0) -> Verdict:
    *_, (_, verdict) = steps(world, start(world, random.Random(seed), delay))
    return verdict


def oracle(world: World) -> tuple[str, tuple[int, ...]]:
    """The rules once more, told of the whole truth: (reason or `commit` or `wait`, ranks)."""
    spoken: dict[int, list[tuple[MarkerName, Marker]]] = {}
    for name, body in world.words:
        for rank in range(name.first, name.last + 1):
            spoken.setdefault(rank, []).append((name, body))
    everybody = range(world.size)
    silent = [rank for rank in everybody if rank not in spoken]
    if not spoken:
        return "wait", tuple(silent)
    if unknown := sorted(rank for rank in spoken if rank >= world.size):
        return "rank-unknown", tuple(unknown)
    twice = [rank for rank, said in spoken.items() if len({name.seat for name, _ in said}) > 1]
    unsure = [rank for rank, said in spoken.items() if len([1 for name, _ in said if name.status != "failed"]) > 1]
    failures = sorted(rank for rank, said in spoken.items() if any(name.status == "failed" for name, _ in said))
    if twice or set(unsure) - set(failures):
        return "duplicate-rank", tuple({*twice, *(set(unsure) - set(failures))})
    if failures:
        return "failed", tuple(failures)
    if past := [rank for rank in silent if rank in world.later]:
        return "skipped", tuple(past)
    if left := [rank for rank in silent if rank in world.leaves and (world.leaves[rank] or -1) < STEP]:
        return "left", tuple(left)
    saved = sorted((name, body) for name, body in world.words if name.status == "saved")
    if len({(body.path, body.kind) for _, body in saved}) > 1:
        return "path-mismatch", tuple(sorted(name.first for name, _ in saved))
    if silent:
        return ("timeout", tuple(silent)) if world.late else ("wait", tuple(silent))
    ranks = tuple(name.first for name, _ in saved)
    facts = sorted({(fact.path, fact.size, fact.digest) for _, body in saved for fact in body.files})
    if len({path for path, _, _ in facts}) < len(facts):
        return "shard-conflict", ()
    there = world.files(saved[0][1].path or "") if saved else {}
    lost = {path for path, size, _ in facts if there.get(path) != size}
    if lost:
        return "shard-missing", ()
    return "commit", ranks


FILES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 2), st.sampled_from("xy")),
    max_size=3, unique_by=lambda file: file[0],
).map(tuple)  # fmt: skip


@st.composite
def worlds(draw):
    size = draw(st.integers(1, 4))
    words: dict[MarkerName, Marker] = {}
    calm = draw(st.booleans())
    for rank in range(size + draw(st.sampled_from([0, 0, 0, 0, 1]))):
        statuses = ["saved", "empty"] if calm else ["saved", "empty", "failed", "silent", "twice", "both"]
        status = draw(st.sampled_from(statuses))
        path = OWN if calm else draw(st.sampled_from([OWN, OWN, OWN, OWN, "s3://elsewhere/x/"]))
        files = draw(FILES) if status in ("saved", "twice", "both") else ()
        own = tuple((f"r{rank}-{path}" if draw(st.booleans()) else path, n, what) for path, n, what in files)
        said = {
            "silent": [],
            "twice": [("saved", 0), ("empty", draw(st.integers(0, 1)))],
            "both": [("saved", 0), ("failed", 0)],
        }
        for each, seat in said.get(status, [(status, 0)]):
            words.update([word(rank, each, own if each == "saved" else (), path=path, seat=seat)])
    ranks = st.integers(0, size)
    return World(
        size,
        tuple(words.items()),
        later=draw(st.frozensets(ranks, max_size=2)),
        leaves=draw(st.dictionaries(ranks, st.sampled_from([None, 9, 10, 20]), max_size=2)),
        late=draw(st.booleans()),
        damage=draw(st.dictionaries(st.sampled_from(["a", "r0-a", "r1-b"]), st.sampled_from([None, 0, 1]), max_size=1)),
        strangers=draw(
            st.dictionaries(st.sampled_from(["z", "_tallymark/x", "sub/", "caf\udce9"]), st.just(7), max_size=2)
        ),
    )


WORLDS = settings(max_examples=60, deadline=None)


@pytest.mark.rule("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8")
@WORLDS
@given(worlds(), st.integers(0, 2**32), st.sampled_from([0.0, 60.0]))
def test_a_driver_that_looks_as_told_ends_where_the_rules_say(world, seed, delay):
    verdict = outcome(world, seed, delay)
    reason, ranks = oracle(world)
    match verdict:
        case Wait():
            assert (reason, ranks) == ("wait", verdict.missing)
        case Commit():
            assert (reason, ranks) == ("commit", verdict.ranks)
            assert (verdict.first.first, dict(world.words)[verdict.first].metrics) == (0, {"rank": 0})
        case Abort():
            assert reason == verdict.reason
            assert list(verdict.ranks) == sorted(set(verdict.ranks)) != []
            if reason == "duplicate-rank":
                assert set(verdict.ranks) <= set(ranks)
            elif ranks:
                assert verdict.ranks == ranks


@pytest.mark.rule("B8", "B12")
@WORLDS
@given(worlds(), st.integers(0, 2**32), st.integers(0, 2**32))
def test_who_saw_what_first_changes_no_verdict(world, one, other):
    assert outcome(world, one) == outcome(world, other)
    assert outcome(replace(world, words=world.words[::-1]), one) == outcome(world, one)


@pytest.mark.rule("B10", "B11", "B12")
@WORLDS
@given(worlds(), st.integers(0, 2**32), st.sampled_from([0.0, 5.0]))
def test_nothing_rests_on_an_old_absence(world, seed, delay):
    for seen, verdict in steps(world, start(world, random.Random(seed), delay)):
        if not isinstance(verdict, Abort | Commit):
            continue
        newest = max(seen.markers.values())
        assert seen.lower is not None and seen.lower >= newest + delay
        if isinstance(verdict, Commit) and verdict.lead is not None:
            path = dict(world.words)[verdict.lead].path
            assert path is not None and seen.data[path].began >= newest + delay
        if isinstance(verdict, Abort) and verdict.reason in ABSENCE:
            facts: dict[str, Any] = {
                "skipped": seen.later, "left": {rank: leave.seen for rank, leave in seen.farewells.items()},
                "timeout": dict.fromkeys(range(world.size), seen.deadline),
            }  # fmt: skip
            moment = max(facts[verdict.reason][rank] for rank in verdict.ranks) + delay
            assert seen.listed is not None and seen.listed >= moment
            assert seen.lower >= moment
        if isinstance(verdict, Abort) and verdict.reason == "shard-missing":
            assert seen.sizes, "no direct look"


@pytest.mark.rule("B8")
@WORLDS
@given(worlds(), st.integers(0, 2**32))
def test_more_looking_changes_no_decision(world, seed):
    *_, (seen, verdict) = steps(world, start(world, random.Random(seed)))
    every = Look(
        listing=True, lower=True, bodies=tuple(name for name, _ in world.words), data=OWN,
        files=tuple(sorted({fact.path for _, body in world.words for fact in body.files})),
    )  # fmt: skip
    again = decide(fetched(world, seen, every, 5_000.0))
    assert again == verdict


@pytest.mark.rule("B8")
@settings(max_examples=20, deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_missing_names_exactly_who_is_silent(world, seed):
    seen = start(world, random.Random(seed))
    spoken = {rank for name, _ in world.words for rank in range(name.first, name.last + 1)}
    assert missing(seen) == tuple(sorted(set(range(world.size)) - spoken))


# ---- who contributes -------------------------------------------------------------------------------------------------


@pytest.mark.rule("B6", "B16")
@pytest.mark.parametrize("chosen", [c for n in range(5) for c in itertools.combinations(range(4), n)], ids=str)
def test_any_set_of_ranks_may_contribute_and_is_named_exactly(chosen):
    words = [
        word(rank, "saved", ((f"{rank}", rank, "x"),)) if rank in chosen else word(rank, "empty") for rank in range(4)
    ]
    for order in itertools.permutations(words):
        verdict = outcome(World(4, order), seed=len(chosen))
        assert isinstance(verdict, Commit)
        assert verdict.ranks == chosen
        assert (verdict.files, verdict.bytes) == (len(chosen), sum(chosen))
        assert (verdict.lead is None) == (chosen == ())
        assert verdict.first == words[0][0]


@pytest.mark.rule("B8", "B16")
def test_nine_of_ten_wait_for_the_tenth_whoever_it_is():
    for silent in range(10):
        words = tuple(word(rank, "saved" if rank == 3 else "empty") for rank in range(10) if rank != silent)
        assert outcome(World(10, words)) == Wait((silent,))
        late = outcome(World(10, words, late=True))
        assert isinstance(late, Abort) and (late.reason, late.ranks) == ("timeout", (silent,))
        assert f"rank {silent} " in late.detail


# ---- what is told to people ------------------------------------------------------------------------------------------


@pytest.mark.rule("B7")
def test_ranks_are_told_as_ranges_and_not_by_the_thousand():
    some = outcome(World(8, (word(0, "empty"), word(2, "empty"), word(3, "empty")), late=True))
    assert isinstance(some, Abort) and "ranks 1, 4-7 did" in some.detail
    many = outcome(World(1_000, tuple(word(rank, "empty") for rank in range(0, 1_000, 2)), late=True))
    assert isinstance(many, Abort) and len(many.ranks) == 500 and len(many.detail) < 100


@pytest.mark.rule("B5")
def test_a_mismatch_tells_the_ranks_behind_each_place():
    words = (word(0, "saved"), word(1, "saved", path="/x/"), word(2, "saved"), word(3, "empty"))
    verdict = outcome(World(4, words))
    assert isinstance(verdict, Abort)
    assert sorted(verdict.detail.removeprefix("different checkpoints are named: ").split("; ")) == [
        "rank 1",
        "ranks 0, 2",
    ]
    assert {name.first for name in verdict.quote} == {0, 1}


@pytest.mark.rule("B6", "B11")
def test_a_missing_file_is_told_with_its_sizes_and_a_sound_empty_one_is_not():
    words = (word(0, "saved", (("big", 1000, "x"), ("nothing", 0, "x"))), word(1, "empty"))
    verdict = outcome(World(2, words, damage={"big": 0}))
    assert isinstance(verdict, Abort)
    assert "'big' (0 of 1000 bytes)" in verdict.detail and "nothing" not in verdict.detail


@pytest.mark.rule("B6")
def test_a_marker_that_saved_nowhere_is_damaged_and_not_the_whole_run():
    name, body = word(0, "saved")
    seen = start(World(1, ((name, body),)), random.Random(0))
    seen = replace(seen, lower=99.0, bodies={name.digest: records.convert(
        records.parse(records.canonical(body), "it") | {"path": None}, Marker, "it")})  # fmt: skip
    verdict = decide(seen)
    assert isinstance(verdict, Abort) and verdict.reason == "marker-damaged"
