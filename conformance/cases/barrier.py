"""Observations and the verdicts that must follow (docs/spec/barrier.md).

Attempt 2, step 10. Unless a case says otherwise, markers were seen at moment 1, the steps below and the data were
listed at moment 10, and nobody listed the step's markers again since.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cases.plain import canonical, fingerprint, folder, sha256

STEP, ATTEMPT = 10, 2
OWN = folder(STEP, ATTEMPT)
ADOPTED = "s3://elsewhere/step-10/"
CASES: list[dict[str, Any]] = []


class Marker(NamedTuple):
    name: str
    body: dict[str, Any]

    @property
    def digest(self) -> str:
        return self.name.split(".")[-2]


def marker(rank, status, files=(), *, last=None, seat="a", path=None, kind="files", say=None) -> Marker:
    """A rank's word. `files` are (path, size) or (path, size, what is in it); `say` makes the body another one."""
    last = rank if last is None else last
    facts = [
        {"path": f[0], "size": f[1], "digest": None if path == ADOPTED else sha256(str(f[1:]))} for f in files
    ]  # fmt: skip
    seats = [sha256(f"seat {seat} of {r}")[:16] for r in range(rank, last + 1)]
    body = {
        "format": "tallymark.marker/1", "attempt": ATTEMPT, "step": STEP, "first_rank": rank, "last_rank": last,
        "seats": seats, "status": status, "host": f"host-{seat}{rank}", "pid": 100 + rank, "path": path,
        "adopted": path == ADOPTED, "kind": kind if path else "", "metadata": {}, "files": facts,
        "metrics": {"loss": rank + 0.5} if say is None else {"say": say}, "durations_s": {},
        "cause": "disk full" if status == "failed" else "", "version": "0",
    }  # fmt: skip
    where = "-" if path is None else sha256(f"{path}\0{kind}")[:8]
    sizes = [(f[0], f[1]) for f in files]
    name = (
        f"{rank:06d}-{last:06d}.{status}.{where}.{len(files)}.{sum(size for _, size in sizes)}"
        f".{fingerprint(sizes):016x}.{seats[0][:8]}.{sha256(canonical(body))[:32]}.json"
    )
    return Marker(name, body)


def saved(rank, *files, path=OWN, **more):
    return marker(rank, "saved", files, path=path, **more)


def empty(rank, **more):
    return marker(rank, "empty", **more)


def failed(rank, **more):
    return marker(rank, "failed", **more)


def wait(*missing):
    return {"verdict": "wait", "missing": list(missing)}


def look(*, listing=False, lower=False, bodies=(), data=None, files=()):
    names = [m.name for m in bodies]
    return {
        "verdict": "look", "listing": listing, "lower": lower, "bodies": names, "data": data, "files": list(files),
    }  # fmt: skip


def commit(first, lead, ranks, files, size):
    lead_name = lead.name if lead else None
    return {"verdict": "commit", "first": first.name, "lead": lead_name, "ranks": ranks, "files": files, "bytes": size}


def abort(reason, ranks, quote=()):
    return {"verdict": "abort", "reason": reason, "ranks": ranks, "quote": sorted(m.name for m in quote)}


def case(
    name, rule, markers, expected, *, world=4, seen=None, later=None, farewells=None, deadline=None, listed=None,
    lower=10.0, delay=0.0, data=None, data_at=10.0, data_path=OWN, read=(), damaged=(), sizes=None,
    unreadable=None,
):  # fmt: skip
    """`seen`: rank -> moment, where a marker was not seen at 1. `read`: markers whose bodies were read."""
    moments = {m.name: float((seen or {}).get(m.body["first_rank"], 1.0)) for m in markers}
    bodies: dict[str, Any] = {m.digest: m.body for m in read} | {m.digest: None for m in damaged}
    leaves = {str(rank): {"last_step": last, "seen": moment} for rank, (last, moment) in (farewells or {}).items()}
    observation = {
        "world_size": world, "step": STEP, "own_path": OWN, "markers": moments,
        "later": {str(rank): float(moment) for rank, moment in (later or {}).items()},
        "farewells": leaves, "deadline": deadline, "listed": listed, "lower": lower, "delay_s": delay,
        "data": {} if data is None else {data_path: {"began": data_at, "files": data}},
        "bodies": bodies, "sizes": sizes or {}, "unreadable": unreadable or {},
    }  # fmt: skip
    CASES.append({"name": name, "rule": rule, "observation": observation, "expected": expected})


E0, E1, E2, E3 = (empty(rank) for rank in range(4))
S0, S1, S2, S3 = (saved(rank, (f"rank-{rank}.bin", 100 + rank)) for rank in range(4))
ALL = {f"rank-{rank}.bin": 100 + rank for rank in range(4)}
F0, F1, F3 = failed(0), failed(1), failed(3)

# ---- B8: waiting -----------------------------------------------------------------------------------------------------

case("no marker at all", "B8", [], wait(0, 1, 2, 3))
case("no marker, though a deadline is said to have passed", "B8", [], wait(0, 1, 2, 3), deadline=5.0, listed=9.0)
case("one of four", "B8", [E1], wait(0, 2, 3))
case("rank 0 alone is silent", "B8", [S1, S2, S3], wait(0))
case("only rank 0 spoke", "B8", [S0], wait(1, 2, 3))
case("a node speaks for three ranks", "B8", [empty(0, last=2)], wait(3))
case("waiting asks for no listing", "B8", [E0, E1, E2], wait(3), lower=None)
case("a world of one waits for nobody else", "B8", [], wait(0), world=1)

# ---- B1: whose word is it --------------------------------------------------------------------------------------------

again = saved(2, ("rank-2.bin", 102), seat="b")
case("two seats saved", "B1", [S0, S2, again], abort("duplicate-rank", [2], [S2, again]))
two = empty(2, seat="b")
case("two seats, one saved and one empty", "B1", [S2, two], abort("duplicate-rank", [2], [S2, two]))
two = failed(2, seat="b")
case("two seats, and one of them failed: not `failed`", "B1", [S2, two], abort("duplicate-rank", [2], [S2, two]))
node = empty(0, last=3, seat="b")
case("a node speaks for a rank that speaks for itself", "B1", [node, E2], abort("duplicate-rank", [2], [node, E2]))
node, other = empty(0, last=2), empty(2, last=3, seat="b")
case("two nodes overlap", "B1", [node, other], abort("duplicate-rank", [2], [node, other]))
case("one seat saved, and says that it has nothing", "B1", [S2, E2], abort("duplicate-rank", [2], [S2, E2]))
two = saved(2, ("rank-2.bin", 99))
case("one seat saved two different things", "B1", [S2, two], abort("duplicate-rank", [2], [S2, two]))
case(
    "duplicates are told even when everybody is there and the data are right", "B1", [S0, S1, S2, S3, again],
    abort("duplicate-rank", [2], [S2, again]), data=ALL, read=[S0, S1, S2, S3, again],
)  # fmt: skip
case(
    "duplicates come before a rank that went past", "B1", [S2, again], abort("duplicate-rank", [2], [S2, again]),
    later={3: 2}, listed=9.0,
)  # fmt: skip
four = empty(4)
case("a rank that the attempt does not have", "B1", [E0, four], abort("rank-unknown", [4], [four]))
node = empty(2, last=5)
case("a node that sticks out of the attempt", "B1", [E0, node], abort("rank-unknown", [4, 5], [node]))
nine = failed(9)
case("an unknown rank that failed is unknown first", "B1", [nine, F1], abort("rank-unknown", [9], [nine]))
case("the last rank of the attempt is known", "B1", [E3], wait(0, 1, 2))

# ---- B2: a rank failed -----------------------------------------------------------------------------------------------

case("one failed, the others are not there yet", "B2", [F1], abort("failed", [1], [F1]))
case("failed beside saved of the same seat", "B2", [S1, F1], abort("failed", [1], [F1]))
case("two failed", "B2", [E0, F1, F3], abort("failed", [1, 3], [F1, F3]))
node = failed(0, last=1)
case("a node failed", "B2", [node, E2], abort("failed", [0, 1], [node]))
case("all spoke, one failed", "B2", [S0, F1, S2, S3], abort("failed", [1], [F1]), data=ALL, read=[S0])
case("rank 0 failed", "B2", [F0, S1, S2, S3], abort("failed", [0], [F0]))
case("failed needs no listing, though another rank went past", "B2", [F1], abort("failed", [1], [F1]), later={3: 5})
case(
    "failed comes before a timeout", "B2", [F1, E2], abort("failed", [1], [F1]), deadline=5.0, listed=9.0,
)  # fmt: skip
wrong = failed(1, say="again")
case("one seat failed twice, in other words", "B2", [F1, wrong], abort("failed", [1], [F1, wrong]))

# ---- B3: a rank went past --------------------------------------------------------------------------------------------

case("went past, listed since: no deadline needed", "B3", [E0, E1, E2], abort("skipped", [3]), later={3: 5}, listed=6.0)
case("went past, never listed", "B3", [E0, E1, E2], look(listing=True), later={3: 5})
case("went past, listed before that", "B10", [E0, E1, E2], look(listing=True), later={3: 5}, listed=4.9)
case("a listing that began at that very moment counts", "B10", [E0], abort("skipped", [3]), later={3: 5}, listed=5.0)
case("rank 0 went past", "B3", [S1, S2, S3], abort("skipped", [0]), later={0: 5}, listed=6.0)
case("went past, and spoke here too", "B3", [E0, E3], wait(1, 2), later={3: 5, 0: 5}, listed=6.0)
case("two went past", "B3", [E0, E1], abort("skipped", [2, 3]), later={2: 5, 3: 6}, listed=6.0)
case("two went past, listed between the two", "B10", [E0, E1], look(listing=True), later={2: 5, 3: 7}, listed=6.0)
case(
    "the store's visibility delay has not passed", "B10", [E0, E1, E2], look(listing=True), later={3: 5}, listed=64.0,
    lower=99.0, delay=60.0,
)  # fmt: skip
case(
    "the store's visibility delay has passed", "B10", [E0, E1, E2], abort("skipped", [3]), later={3: 5}, listed=65.0,
    lower=99.0, delay=60.0,
)  # fmt: skip
case("a rank of no concern went past", "B3", [E0], wait(1, 2, 3), later={7: 5}, listed=6.0)
case(
    "went past and left: `skipped`", "B3", [E0], abort("skipped", [3]), later={3: 5}, farewells={3: (9, 5)}, listed=6.0
)
elsewhere = saved(1, ("x", 1), path=ADOPTED)
case(
    "went past comes before a mismatch, so it is looked at first",
    "B3",
    [S0, elsewhere],
    look(listing=True),
    later={3: 5},
)
case("went past comes before a mismatch", "B3", [S0, elsewhere], abort("skipped", [3]), later={3: 5}, listed=6.0)

# ---- B4: a rank left -------------------------------------------------------------------------------------------------

case("left after step 9", "B4", [E0, E1, E2], abort("left", [3]), farewells={3: (9, 5.0)}, listed=6.0)
case("left, and never reported", "B4", [E0, E1, E2], abort("left", [3]), farewells={3: (None, 5.0)}, listed=6.0)
case("left, not listed since", "B10", [E0, E1, E2], look(listing=True), farewells={3: (9, 5.0)}, listed=4.0)
case(
    "left after this step: its marker must be about", "B4", [E0, E1, E2], wait(3), farewells={3: (10, 5.0)}, listed=6.0
)
case("left after a later step", "B4", [E0, E1, E2], wait(3), farewells={3: (20, 5.0)}, listed=6.0)
case("left, and spoke here", "B4", [E0, E3], wait(1, 2), farewells={3: (9, 5.0)}, listed=6.0)
case("two left", "B4", [E1, E2], abort("left", [0, 3]), farewells={0: (9, 5.0), 3: (None, 6.0)}, listed=6.0)
case("left comes before a mismatch", "B4", [S0, elsewhere], abort("left", [3]), farewells={3: (9, 5.0)}, listed=6.0)
case(
    "left comes before a timeout", "B4", [E0, E1], abort("left", [3]), farewells={3: (9, 5.0)}, deadline=6.0,
    listed=6.0,
)  # fmt: skip

# ---- B5: different places --------------------------------------------------------------------------------------------

case("two paths", "B5", [S0, elsewhere], abort("path-mismatch", [0, 1], [S0, elsewhere]))
kind = saved(1, ("x", 1), kind="torch")
case("one path, two kinds", "B5", [S0, kind], abort("path-mismatch", [0, 1], [S0, kind]))
case("three against one", "B5", [S0, kind, S2, S3], abort("path-mismatch", [0, 1, 2, 3], [S0, kind]))
third = saved(2, ("x", 1), path="/mnt/z")
case("three places", "B5", [S0, elsewhere, third], abort("path-mismatch", [0, 1, 2], [S0, elsewhere, third]))
kind3 = saved(3, ("x", 1), kind="torch")
case("who saved nothing is not concerned", "B5", [E0, S1, E2, kind3], abort("path-mismatch", [1, 3], [S1, kind3]))
case("a mismatch needs no deadline", "B5", [S2, elsewhere], abort("path-mismatch", [1, 2], [S2, elsewhere]))
case(
    "a mismatch comes before a timeout", "B5", [S2, elsewhere], abort("path-mismatch", [1, 2], [S2, elsewhere]),
    deadline=5.0, listed=9.0,
)  # fmt: skip

# ---- B6: everybody spoke ---------------------------------------------------------------------------------------------

EMPTY = [E0, E1, E2, E3]
FULL = [S0, S1, S2, S3]
case("metrics only: rank 0's body first", "B6", EMPTY, look(bodies=[E0]))
case("metrics only: commit without a checkpoint", "B6", EMPTY, commit(E0, None, [], 0, 0), read=[E0])
case("all saved: one body, and the data", "B6", FULL, look(bodies=[S0], data=OWN))
case("all saved: commit", "B6", FULL, commit(S0, S0, [0, 1, 2, 3], 4, 406), read=[S0], data=ALL)
eight = [E0, E1, S2, E3, saved(4, ("a/four", 4)), empty(5), saved(6, ("six", 6)), empty(7)]
some = {"rank-2.bin": 102, "a/four": 4, "six": 6}
case("ranks 2, 4, 6 of 8: bodies of rank 0 and rank 2", "B6", eight, look(bodies=[E0, S2], data=OWN), world=8)
case(
    "ranks 2, 4, 6 of 8: commit, with the metrics of rank 0", "B16", eight, commit(E0, S2, [2, 4, 6], 3, 112),
    world=8, read=[E0, S2], data=some,
)  # fmt: skip
case(
    "the last rank alone saved",
    "B16",
    [E0, E1, E2, S3],
    commit(E0, S3, [3], 1, 103),
    read=[E0, S3],
    data={"rank-3.bin": 103},
)
case("bodies are read, the data were never listed", "B6", FULL, look(data=OWN), read=[S0])
case(
    "the data were listed before the last marker",
    "B10",
    FULL,
    look(data=OWN),
    read=[S0],
    data=ALL,
    seen={3: 5},
    data_at=4.0,
)
case(
    "the data were listed within the visibility delay", "B10", FULL, look(data=OWN), read=[S0], data=ALL, lower=99.0,
    delay=60.0, data_at=60.0,
)  # fmt: skip
case(
    "the deadline has passed, but everybody is there", "B6", FULL, commit(S0, S0, [0, 1, 2, 3], 4, 406), read=[S0],
    data=ALL, deadline=5.0, listed=9.0,
)  # fmt: skip
case(
    "our own files and folder markers are no data", "B6", FULL, commit(S0, S0, [0, 1, 2, 3], 4, 406), read=[S0],
    data=ALL | {"_tallymark/inventory.jsonl.gz": 7, "sub/": 0},
)  # fmt: skip
case(
    "a stranger's file: first the bodies", "B6", FULL, look(bodies=[S1, S2, S3]), read=[S0], data=ALL | {"stranger": 1},
)  # fmt: skip
case(
    "a stranger's file: commit without it", "B6", FULL, commit(S0, S0, [0, 1, 2, 3], 4, 406), read=FULL,
    data=ALL | {"stranger": 1},
)  # fmt: skip
case("a short file: first the bodies", "B6", FULL, look(bodies=[S1, S2, S3]), read=[S0], data=ALL | {"rank-1.bin": 0})
case(
    "a short file: then that very file",
    "B11",
    FULL,
    look(files=["rank-1.bin"]),
    read=FULL,
    data=ALL | {"rank-1.bin": 0},
)
case(
    "a short file: abort", "B6", FULL, abort("shard-missing", [1]), read=FULL, data=ALL | {"rank-1.bin": 0},
    sizes={"rank-1.bin": 0},
)  # fmt: skip
GONE = {path: size for path, size in ALL.items() if path != "rank-2.bin"}
RENAMED = GONE | {"rank-9.bin": 102}
case(
    "as many files and bytes, but one has another name", "B6", FULL, look(bodies=[S1, S2, S3]), read=[S0], data=RENAMED
)
case(
    "a stranger does not stand in for a file", "B6", FULL, abort("shard-missing", [2]), read=FULL, data=RENAMED,
    sizes={"rank-2.bin": None},
)  # fmt: skip
case("a missing file: then that very file", "B11", FULL, look(files=["rank-2.bin"]), read=FULL, data=GONE)
case("a missing file: abort", "B6", FULL, abort("shard-missing", [2]), read=FULL, data=GONE, sizes={"rank-2.bin": None})
case(
    "the listing was behind, the file is there", "B11", FULL, commit(S0, S0, [0, 1, 2, 3], 4, 406), read=FULL,
    data=GONE,
    sizes={"rank-2.bin": 102},
)  # fmt: skip
case(
    "files of two ranks are missing", "B6", FULL, abort("shard-missing", [0, 3]), read=FULL,
    data={"rank-1.bin": 101, "rank-2.bin": 102}, sizes={"rank-0.bin": None, "rank-3.bin": 1},
)  # fmt: skip
zero = saved(0, ("nothing", 0))
Z = [zero, E1, E2, E3]
case("a file of no bytes is a file", "B6", Z, commit(zero, zero, [0], 1, 0), read=[zero], data={"nothing": 0})
case(
    "a file of no bytes that is missing",
    "B6",
    Z,
    abort("shard-missing", [0]),
    read=[zero],
    data={},
    sizes={"nothing": None},
)
none = saved(1)
case("a shard of no files", "B6", [E0, none, E2, E3], commit(E0, none, [1], 0, 0), read=[E0, none], data={})
same0, same1 = saved(0, ("config", 9), ("a", 1)), saved(1, ("config", 9), ("b", 2))
SAME = [same0, same1, E2, E3]
case(
    "the same file from two ranks: the bodies tell",
    "B6",
    SAME,
    look(bodies=[same1]),
    read=[same0],
    data={"config": 9, "a": 1, "b": 2},
)
case(
    "the same file from two ranks is one file", "B6", SAME, commit(same0, same0, [0, 1], 3, 12), read=[same0, same1],
    data={"config": 9, "a": 1, "b": 2},
)  # fmt: skip
other = saved(1, ("config", 9, "other bytes"))
case(
    "one path, one size, two digests", "B6", [same0, other, E2, E3], abort("shard-conflict", [0, 1], [same0, other]),
    read=[same0, other], data={"config": 9, "a": 1},
)  # fmt: skip
longer = saved(3, ("config", 10))
case(
    "one path, two sizes", "B6", [same0, E1, E2, longer], abort("shard-conflict", [0, 3], [same0, longer]),
    read=[same0, longer], data={"config": 10, "a": 1},
)  # fmt: skip
case(
    "a conflict is told before a missing file", "B6", [same0, other, E2, E3],
    abort("shard-conflict", [0, 1], [same0, other]), read=[same0, other], data={}, sizes={"config": None, "a": None},
)  # fmt: skip
away0, away2 = saved(0, ("model", 5), path=ADOPTED), saved(2, ("model", 5), path=ADOPTED)
file0, folder1 = saved(0, ("model", 1)), saved(1, ("model/x.bin", 1))
NESTED = [file0, folder1, E2, E3]
BOTH = {"model": 1, "model/x.bin": 1}
case(
    "a file that another rank needs as a folder: the sums agree, the bodies tell", "B6", NESTED, look(bodies=[folder1]),
    read=[file0], data=BOTH,
)  # fmt: skip
case(
    "a file that another rank needs as a folder", "B6", NESTED, abort("shard-conflict", [0, 1], [file0, folder1]),
    read=[file0, folder1], data=BOTH,
)  # fmt: skip
case("adopted: the body says where", "B6", [away0, E1, E2, E3], look(bodies=[away0], data=OWN))
BLIND = {ADOPTED: "access denied"}
case(
    "adopted: what cannot be looked at from here is no evidence", "B6", [away0, E1, E2, E3], look(data=ADOPTED),
    read=[away0], unreadable=BLIND,
)  # fmt: skip
case(
    "adopted: nobody could look before the deadline", "B6", [away0, E1, E2, E3], abort("data-unreadable", [0], [away0]),
    read=[away0], unreadable=BLIND, deadline=5.0,
)  # fmt: skip
case(
    "adopted: the deadline alone aborts nothing that can be looked at", "B6", [away0, E1, E2, E3], look(data=ADOPTED),
    read=[away0], deadline=5.0,
)  # fmt: skip
case(
    "adopted: a file that cannot be looked at directly", "B6", [away0, E1, E2, E3], abort("data-unreadable", [0]),
    read=[away0], data={}, data_path=ADOPTED, unreadable=BLIND, deadline=5.0,
)  # fmt: skip
case("adopted: the data there", "B6", [away0, E1, E2, E3], look(data=ADOPTED), read=[away0], data={})
case(
    "adopted: commit", "B6", [away0, E1, E2, E3], commit(away0, away0, [0], 1, 5), read=[away0], data={"model": 5},
    data_path=ADOPTED,
)  # fmt: skip
case(
    "adopted by two ranks, without digests", "B6", [away0, E1, away2, E3], commit(away0, away0, [0, 2], 1, 5),
    read=[away0, away2], data={"model": 5}, data_path=ADOPTED,
)  # fmt: skip
left, right = saved(0, ("l", 1), last=1), saved(2, ("r", 2), last=3)
case(
    "two nodes save for four ranks", "B6", [left, right], commit(left, left, [0, 1, 2, 3], 2, 3), read=[left],
    data={"l": 1, "r": 2},
)  # fmt: skip
case("the body of rank 0 is not what its name says", "B6", EMPTY, abort("marker-damaged", [0]), damaged=[E0])
case(
    "the body of the first saved rank is damaged",
    "B6",
    [E0, S1, E2, E3],
    abort("marker-damaged", [1]),
    read=[E0],
    damaged=[S1],
)
case(
    "a damaged body that is read only in doubt", "B6", FULL, abort("marker-damaged", [3]), read=[S0, S1, S2],
    damaged=[S3],
    data=GONE,
)  # fmt: skip
case("a world of one commits", "B6", [E0], commit(E0, None, [], 0, 0), world=1, read=[E0])

# ---- B7: the deadline ------------------------------------------------------------------------------------------------

case("the deadline passed, listed since", "B7", [E0, E1, E2], abort("timeout", [3]), deadline=5.0, listed=5.0)
case("the deadline passed, never listed", "B7", [E0, E1, E2], look(listing=True), deadline=5.0)
case("the deadline passed, listed before", "B10", [E0, E1, E2], look(listing=True), deadline=5.0, listed=4.0)
case("the deadline passed for three", "B7", [S2], abort("timeout", [0, 1, 3]), deadline=5.0, listed=6.0)
case("the deadline passed for rank 0", "B7", [S1, S2, S3], abort("timeout", [0]), deadline=5.0, listed=6.0)
case(
    "the deadline and the visibility delay passed", "B10", [E0, E1, E2], abort("timeout", [3]), deadline=5.0,
    listed=65.0, lower=65.0, delay=60.0,
)  # fmt: skip

# ---- B12: the steps below --------------------------------------------------------------------------------------------

READY = {"read": [S0], "data": ALL}
case("ready, the steps below were never listed", "B12", FULL, look(lower=True), lower=None, **READY)
case("ready, the steps below were listed too early", "B12", FULL, look(lower=True), seen={2: 5}, lower=4.0, **READY)
case(
    "ready, listed at that very moment",
    "B12",
    FULL,
    commit(S0, S0, [0, 1, 2, 3], 4, 406),
    seen={2: 5},
    lower=5.0,
    **READY,
)
case(
    "the steps below are listed beside the other looks",
    "B12",
    FULL,
    look(bodies=[S0], data=OWN, lower=True),
    lower=None,
)
case("no abort before the steps below were listed", "B12", [F1], look(lower=True), lower=None)
case("a duplicate waits for it too", "B12", [S2, again], look(lower=True), lower=0.5)
case("both listings at once", "B12", [E0, E1, E2], look(listing=True, lower=True), later={3: 5}, lower=2.0)
case(
    "listed below before the rank was seen to have gone past", "B12", [E0, E1, E2], look(lower=True), later={3: 5},
    listed=6.0, lower=4.0,
)  # fmt: skip
case(
    "listed below before the farewell was seen", "B12", [E0, E1, E2], look(lower=True), farewells={3: (9, 5.0)},
    listed=6.0, lower=4.0,
)  # fmt: skip
case("listed below before the deadline", "B12", [E0, E1, E2], look(lower=True), deadline=5.0, listed=6.0, lower=4.0)
case("the visibility delay holds below too", "B12", [F1], look(lower=True), lower=60.0, delay=60.0)
case("the visibility delay has passed below", "B12", [F1], abort("failed", [1], [F1]), lower=61.0, delay=60.0)
