"""What a step costs: requests and sequential round trips, counted at the store port, against the budgets of the design.

Stretches whose round trips are counted run with a pause in every operation that is long beside the start of a thread,
so that what is sent side by side does overlap.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import tallymark
from tallymark import layout, records
from tallymark.journal import READ_AHEAD, Draft, Journal
from tallymark.parallel import gather
from tallymark.store.local import LocalStore
from tallymark.store.memory import MemoryStore
from tallymark.store.port import RunStore
from tallymark.testing.counting import CountingStore, Operation, requests, round_trips

PAUSE_S = 0.2


def stores() -> dict[str, Callable[[Path], RunStore]]:
    return {
        "create": lambda tmp: LocalStore(tmp / "run"),
        "create after ballots": lambda tmp: MemoryStore(),
        "ballots": lambda tmp: MemoryStore(creates_exclusively=False),
    }


@pytest.fixture(params=sorted(stores()))
def store(request, tmp_path) -> CountingStore:
    return CountingStore(stores()[request.param](tmp_path))


@contextmanager
def stretch(store: CountingStore, *, pause_s: float = 0.0) -> Iterator[list[Operation]]:
    """The operations of a block, filled in at its end."""
    found: list[Operation] = []
    mark = len(store.operations)

    def pause(operation: Operation) -> None:
        if operation.key == layout.HINT:  # what counts is over
            store.before = None
        time.sleep(pause_s)

    store.before = pause if pause_s else None
    try:
        yield found
    finally:
        store.before = None
        found.extend(store.operations[mark:])


def join_all(store: RunStore, world: int, launch: str = "a") -> list[tallymark.Worker]:
    return [
        tallymark.join(None, rank=rank, world_size=world, launch_id=launch, store=store, host_driver=False)
        for rank in range(world)
    ]


def shard(tmp: Path, name: str, files: int) -> Path:
    folder = tmp / name
    folder.mkdir()
    for number in range(files):
        (folder / f"{name}-{number:05d}.bin").write_bytes(b"x" * (number % 7))
    return folder


def up_to_commit(operations: Sequence[Operation], slot: int) -> tuple[list[Operation], list[Operation]]:
    """What was done until the slot was decided, and what after it."""
    last = max(o.number for o in operations if o.key == layout.slot_key(slot) and o.name in ("create", "put"))
    return [o for o in operations if o.number <= last], [o for o in operations if o.number > last]


# ---- the counting itself --------------------------------------------------------------------------------------------


def operation(began: int, ended: int) -> Operation:
    return Operation(0, "read", "key", "thread", began, ended)


def test_round_trips_are_the_longest_chain():
    assert round_trips([]) == 0
    assert round_trips([operation(1, 4), operation(2, 3)]) == 1
    assert round_trips([operation(1, 2), operation(3, 6), operation(4, 5), operation(7, 8)]) == 3
    assert round_trips([operation(1, 8), operation(2, 3), operation(4, 5), operation(6, 7)]) == 3
    assert round_trips([operation(1, 2), operation(3, 0)]) == 1


def test_the_counting_store_sees_and_forwards_everything(tmp_path):
    seen: list[tuple[str, int, str, str]] = []
    store = CountingStore(
        MemoryStore(),
        before=lambda o: seen.append(("before", o.number, o.name, o.key)),
        after=lambda o: seen.append(("after", o.number, o.name, o.key)),
    )
    (tmp_path / "source").write_bytes(b"abc")
    assert store.create("a", b"1") and not store.create("a", b"2")
    store.put("b/1", b"22")
    assert (store.read("a"), store.read("none"), store.size("b/1")) == (b"1", None, 2)
    assert [item.key for item in store.list("")] == ["a", "b/1"]
    assert next(iter(store.list(""))).key == "a"  # not read any further
    assert store.upload(tmp_path / "source", "c").size == 3
    assert store.download("c", tmp_path / "target").size == 3
    with store.open("c") as stream:
        assert stream.read() == b"abc"
    assert store.delete(["a", "c"]) == []
    assert store.local_path("a") is None and store.url == store.inner.url
    names = ["create", "create", "put", "read", "read", "size", "list", "list", "upload", "download", "open", "delete"]
    assert [o.name for o in store.operations] == names
    assert seen == [(w, o.number, o.name, o.key) for o in store.operations for w in ("before", "after")]
    assert round_trips(store.operations) == len(names)


def test_a_hook_can_stop_an_operation():
    def refuse(operation: Operation) -> None:
        raise tallymark.StoreError("no", key=operation.key, retryable=False)

    store = CountingStore(MemoryStore(), before=refuse)
    with pytest.raises(tallymark.StoreError):
        store.put("a", b"1")
    assert [(o.name, o.ended) for o in store.operations] == [("put", 2)]
    assert store.inner.read("a") is None


def test_listings_and_deletions_are_counted_by_the_page():
    store = CountingStore(MemoryStore())
    keys = [f"k/{number:04d}" for number in range(2001)]
    for key in keys:
        store.inner.put(key, b"1")
    list(store.list("k/"))
    list(store.list("none/"))
    store.delete(keys[:1000])
    store.delete(keys)
    assert [o.requests for o in store.operations] == [3, 1, 1, 3]
    assert (requests(store.operations), requests(store.operations, "list")) == (8, 4)


def test_what_is_side_by_side_is_one_round_trip():
    store = CountingStore(MemoryStore())
    with stretch(store, pause_s=PAUSE_S) as operations:
        gather([lambda: store.read("a"), lambda: store.read("b"), lambda: store.read("c")])
        store.read("d")
    assert (requests(operations), round_trips(operations)) == (4, 2)


# ---- one step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "savers", "files"), [(1, 0, 0), (4, 1, 1), (4, 4, 3), (3, 2, 1200)])
def test_requests_of_one_step(store, tmp_path, world, savers, files):
    """A driver that polls after every report."""
    workers = join_all(store, world)
    driver = tallymark.Driver(None, store=store)
    driver.poll()
    for worker in workers:
        worker.report({}, None, step=0)
    driver.poll()
    polls, told = 0, 0
    with stretch(store) as operations:
        for worker in workers:
            saves = worker.rank >= world - savers
            mark = len(store.operations)
            worker.report({}, shard(tmp_path, f"r{worker.rank}", files) if saves else None, step=1)
            told += requests(o for o in store.operations[mark:] if o.key.startswith("journal/"))
            assert told <= 2 * (worker.rank + 1), "a rank looks what became of the step before, with two reads"
            driver.poll()
            polls += 1
    before, after = up_to_commit(operations, 3)
    uploads = requests(before, "upload")
    assert uploads == savers * files
    spent = requests(before) - uploads - told
    by_ballots = 5 if store.inner.creates_exclusively is False else 0
    assert spent <= world + polls + math.ceil(savers * files / 1000) + 6 + by_ballots
    assert requests(o for o in before if o.name == "put" and o.key.startswith("markers/")) == world
    # sealing, off the path: the hint belongs to the journal
    sealing = [o for o in after if o.key != layout.HINT]
    sweeps = requests(sealing, "delete")
    assert sweeps == 1
    assert requests(sealing) - sweeps <= (savers + 4 if savers else 0)


def test_sweeping_takes_a_request_per_thousand_markers():
    store = CountingStore(MemoryStore())
    world = 1001
    join_all(store, 1, "small")
    workers = [tallymark.join(None, rank=0, world_size=world, launch_id="b", store=store, host_driver=False)]
    driver = tallymark.Driver(None, store=store)
    driver.poll()
    workers[0].report({}, None, step=0)
    template = next(key for key, _ in store.inner.list("markers/000002/"))
    step, name = layout.parse_marker(template) or (0, None)
    body = records.decode(store.inner.read(template) or b"", records.Marker, "marker")
    assert name is not None
    for rank in range(1, world):  # as the other ranks would, without their seats
        marker = records.canonical(
            {**records.parse(records.canonical(body), ""), "first_rank": rank, "last_rank": rank}
        )
        other = name._replace(first=rank, last=rank, digest=records.sha256(marker)[:32])
        store.inner.put(layout.marker_key(2, step, other), marker)
    with stretch(store) as operations:
        driver.poll()
    before, after = up_to_commit(operations, 2 + 1 - 1 + 1)
    assert requests(before, "list") == 2 + 1  # two pages of markers; nothing lies below the step
    assert requests(after, "delete") == 2


def test_a_body_is_read_per_rank_only_where_ranks_wrote_the_same_file(tmp_path):
    store = CountingStore(MemoryStore())
    workers = join_all(store, 3)
    driver = tallymark.Driver(None, store=store)
    driver.poll()
    same = shard(tmp_path, "same", 1)
    for worker in workers:
        worker.report({}, same, step=0)
    with stretch(store) as operations:
        driver.poll()
    before, _ = up_to_commit(operations, 2)
    assert requests(before) <= 1 + 1 + 6 + 3


@pytest.mark.rule("B6", "B15")
def test_the_commit_path_is_three_round_trips(store, tmp_path):
    """Once the last marker is visible: list the markers; look, side by side; write the slot."""
    workers = join_all(store, 3)
    driver = tallymark.Driver(None, store=store)
    driver.poll()
    for step, quiet_polls in enumerate((0, 1, 2, 3, 4)):
        workers[0].report({}, None, step=step)
        workers[1].report({}, shard(tmp_path, f"a{step}", 2), step=step)
        for _ in range(quiet_polls + 1):
            driver.poll()
        workers[2].report({}, shard(tmp_path, f"b{step}", 2), step=step)
        with stretch(store, pause_s=PAUSE_S) as operations:
            assert len(driver.poll().entries) == 1
        before, _ = up_to_commit(operations, step + 2)
        first = next(o.number for o in before if o.name == "list" and o.key.startswith("markers/"))
        path = [o for o in before if o.number >= first]
        # by ballots: the register's own key is read, and then written when the value is decided already
        wanted = 3 if store.inner.creates_exclusively else 2 + 6
        assert round_trips(path) == wanted, (quiet_polls, [(o.name, o.key) for o in path])


def test_an_idle_poll_is_one_request(store, tmp_path):
    workers = join_all(store, 2)
    driver = tallymark.Driver(None, store=store)
    driver.poll()
    for number in range(8):
        with stretch(store) as operations:
            assert not driver.poll().moved
        assert requests(operations) == 1, (number, [(o.name, o.key) for o in operations])
    # with a step open, the farewells and the journal are looked at too, now and then
    workers[0].report({}, None, step=0)
    driver.poll()
    polls = 16
    with stretch(store) as operations:
        for _ in range(polls):
            assert driver.poll().waiting_for == (1,)
    counts = {
        prefix: requests(o for o in operations if o.key.startswith(prefix))
        for prefix in ("markers", "members", "journal")
    }
    assert counts == {"markers": polls, "members": polls // 4, "journal": polls // 4}


# ---- reading --------------------------------------------------------------------------------------------------------

COMMITS = 10_000


@pytest.fixture(scope="module")
def long_run() -> MemoryStore:
    """A journal of 10,000 commits, written by the library's own journal."""
    store = MemoryStore(all_clients_create=True)
    join_all(store, 1)
    journal = Journal(store)
    journal.refresh()
    gc.disable()  # the fold makes a state per entry, and collecting them is most of the time
    for step in range(COMMITS):
        saved = records.Saved(
            path=layout.checkpoint_prefix(step, 1), adopted=False, kind="files", ranks=((0, 0),), files=1, bytes=1
        )
        fields = {
            "step": step,
            "checkpoint": saved if step % 4 == 0 else None,
            "reporting_ranks": ((0, 0),),
            "metrics": {},
            "tally_digest": "0" * 64,
        }
        draft = Draft(records.Commit, 1, fields)
        journal.append(lambda state, draft=draft: draft, refresh=False)
    gc.enable()
    return store


def test_latest_takes_four_requests(store, tmp_path):
    workers = join_all(store, 2)
    driver = tallymark.Driver(None, store=store)
    for step in range(3):
        for worker in workers:
            worker.report({}, shard(tmp_path, f"s{step}", 1) if step < 2 and worker.rank else None, step=step)
        driver.poll()
    with stretch(store) as operations:
        found = tallymark.open(None, store=store).latest()
    assert found is not None and found.step == 1
    assert requests(operations) <= 4


def test_latest_takes_four_requests_on_ten_thousand_commits(long_run):
    store = CountingStore(long_run)
    with stretch(store) as operations:
        found = tallymark.open(None, store=store).latest()
    assert found is not None and found.step == COMMITS - 4
    assert requests(operations) <= 4


@pytest.mark.rule("J12")
def test_latest_without_a_hint_searches_and_does_not_replay(long_run):
    store = CountingStore(long_run)
    hint = long_run.read(layout.HINT)
    assert hint is not None
    try:
        long_run.delete([layout.HINT])
        with stretch(store) as operations:
            found = tallymark.open(None, store=store).latest()
    finally:
        long_run.put(layout.HINT, hint)
    assert found is not None and found.step == COMMITS - 4
    assert requests(operations) <= 2 * math.ceil(math.log2(COMMITS)) + 4


def test_a_full_replay_reads_ahead(long_run):
    """From slot 32 on, 32 reads are under way at once: none returns before they all have begun."""
    slots = 1500
    some = MemoryStore(all_clients_create=True)
    for slot in range(slots):
        some.put(layout.slot_key(slot), long_run.read(layout.slot_key(slot)) or b"")
    together = threading.Barrier(READ_AHEAD)

    def before(operation: Operation) -> None:
        if operation.key >= layout.slot_key(32):
            together.wait(30)

    store = CountingStore(some, before=before)
    assert READ_AHEAD >= 32
    journal = Journal(store)
    journal.refresh()
    assert journal.state is not None and journal.state.next_slot == slots
    assert requests(store.operations) <= slots + READ_AHEAD
    ahead = [operation for operation in store.operations if operation.key >= layout.slot_key(32)]
    assert round_trips(ahead) == math.ceil((slots - 32 + 1) / READ_AHEAD)
