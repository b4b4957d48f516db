"""The driver's own part: deadlines that run from progress, and what one poll costs."""

from __future__ import annotations

import pytest

from tallymark import layout, records
from tallymark.driver import Driver
from tallymark.errors import StoreError
from tallymark.inventory import name_of
from tallymark.journal import Draft
from tallymark.records import Abort, Marker
from tallymark.register import Patience
from tallymark.store.local import LocalStore
from tallymark.store.memory import MemoryStore

TIMEOUT_S = 10.0


class Bench:
    """A run of three ranks on a memory store, a driver on a clock that only `pass_s` moves, hand-written markers."""

    def __init__(self, ranks: int = 3, store: MemoryStore | None = None) -> None:
        self.now = 0.0
        self.store = store or MemoryStore()
        patience = Patience(clock=lambda: self.now, sleep=lambda _: None)
        self.driver = Driver.over(self.store, LocalStore, patience)
        self.driver.journal.begin()
        fields = {
            "launch_id": "a",
            "world_size": ranks,
            "barrier_timeout_s": TIMEOUT_S,
            "resume": "auto",
            "base": None,
        }
        self.driver.journal.append(lambda state: Draft(records.Attempt, 1, fields))

    def mark(self, rank: int, step: int, **other) -> None:
        fields = {
            "attempt": 1,
            "step": step,
            "first_rank": rank,
            "last_rank": rank,
            "seats": (f"{rank:016x}",),
            "status": "empty",
            "host": f"host{rank}",
            "pid": 1,
            "path": None,
            "adopted": False,
            "kind": "files",
            "metadata": {},
            "files": (),
            "metrics": {"rank": rank},
            "durations_s": {},
            "cause": "",
            "version": "0",
        }
        seated = Marker(**{**fields, **other, "seats": fields["seats"]})
        body = records.canonical(Marker(**{**fields, **other}))
        self.store.put(layout.marker_key(1, step, name_of(seated, body)), body)

    def polls(self, count: int = 1) -> list[records.AnyEntry]:
        return [entry for _ in range(count) for entry in self.driver.poll().entries]

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.rule("B14")
def test_the_deadline_runs_from_the_last_progress_of_the_step():
    bench = Bench()
    bench.polls()
    bench.mark(0, 5)
    bench.polls()
    bench.pass_s(TIMEOUT_S - 1)
    bench.mark(1, 5)
    assert not bench.polls()
    bench.pass_s(TIMEOUT_S - 1)
    assert not bench.polls(), "a new marker is progress: the deadline runs anew"
    bench.pass_s(2)
    (abort,) = bench.polls()
    assert isinstance(abort, Abort)
    assert (abort.reason, abort.ranks, abort.step) == ("timeout", ((2, 2),), 5)


@pytest.mark.rule("B14")
def test_a_marker_of_another_step_is_no_progress_of_this_one():
    bench = Bench(2)
    bench.polls()
    bench.mark(0, 5)
    bench.polls()
    bench.pass_s(TIMEOUT_S - 1)
    bench.mark(0, 6)
    bench.polls()
    bench.pass_s(2)
    (abort,) = bench.polls()
    assert isinstance(abort, Abort)
    assert (abort.reason, abort.step) == ("timeout", 5)


@pytest.mark.rule("B13")
def test_a_lower_step_that_is_complete_is_decided_first():
    bench = Bench(2)
    bench.polls()
    for step in (3, 7):
        for rank in (0, 1):
            bench.mark(rank, step)
    assert [entry.step for entry in bench.polls()] == [3, 7]


def test_a_driver_that_starts_sees_what_was_decided_before():
    bench = Bench(1)
    bench.mark(0, 1)
    bench.polls(2)
    other = Driver.over(bench.store, lambda _: bench.store, Patience())
    kinds = [type(entry).__name__ for entry in other.poll().entries]
    assert kinds == ["Genesis", "Attempt", "Commit"]


def test_a_poll_that_fails_keeps_what_it_has_read_for_the_next(monkeypatch):
    """The caller of the next poll hears of every entry, though a listing failed in between."""
    bench = Bench(1)
    other = Driver.over(bench.store, lambda _: bench.store, Patience(timeout_s=0.01, sleep=lambda _: None))
    other.poll()
    bench.mark(0, 1)
    bench.polls(2)
    listing = bench.store.list

    def broken(prefix: str, after: str = ""):
        raise StoreError("no answer", key=prefix, retryable=True)

    monkeypatch.setattr(MemoryStore, "list", lambda self, prefix, after="": broken(prefix))
    other.journal.refresh()
    with pytest.raises(StoreError):
        other.poll()
    monkeypatch.setattr(MemoryStore, "list", lambda self, prefix, after="": listing(prefix, after))
    assert [type(entry).__name__ for entry in other.poll().entries] == ["Commit"]


@pytest.mark.rule("B6", "B7")
def test_adopted_data_that_this_driver_cannot_see_are_left_to_another_until_the_deadline(tmp_path):
    """Not `shard-missing`: the folder lies on another host. And no launch is locked out by it."""
    bench = Bench(1)
    files = (records.FileFact(path="w.bin", size=1, digest=None),)
    elsewhere = str(tmp_path / "elsewhere")
    bench.mark(0, 3, status="saved", path=elsewhere, adopted=True, files=files)
    assert not [entry for entry in bench.polls(3) if entry.attempt and isinstance(entry, Abort | records.Commit)]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "w.bin").write_bytes(b"w")
    able = Driver.over(bench.store, LocalStore, Patience())
    assert [entry.step for entry in able.poll().entries if isinstance(entry, records.Commit)] == [3]


@pytest.mark.rule("B6", "B7")
def test_adopted_data_that_nobody_can_see_abort_the_step_at_the_deadline(tmp_path):
    bench = Bench(1)
    files = (records.FileFact(path="w.bin", size=1, digest=None),)
    bench.mark(0, 3, status="saved", path=str(tmp_path / "nowhere"), adopted=True, files=files)
    bench.polls(2)
    bench.pass_s(TIMEOUT_S + 1)
    (abort,) = bench.polls()
    assert isinstance(abort, Abort)
    assert (abort.reason, abort.ranks) == ("data-unreadable", ((0, 0),))


def test_damaged_advisory_seats_do_not_stop_a_decision():
    bench = Bench(2)
    bench.store.put(layout.seat_key(1, 1, "0" * 16), b'{"torn":')
    bench.mark(0, 3)
    bench.polls(2)
    bench.pass_s(TIMEOUT_S + 1)
    (abort,) = bench.polls()
    assert isinstance(abort, Abort)
    assert [(culprit.rank, culprit.host) for culprit in abort.culprits] == [(1, "")]


def test_a_marker_without_a_seat_is_damaged_and_stops_no_driver():
    bench = Bench(1)
    bench.mark(0, 3, seats=())
    (abort,) = [entry for entry in bench.polls(2) if isinstance(entry, Abort)]
    assert abort.reason == "marker-damaged"


@pytest.mark.rule("L6")
@pytest.mark.parametrize("why", ["no folder", "no answer"])
def test_settling_gives_up_what_nobody_can_see_and_commits_what_is_whole_above_it(tmp_path, why):
    bench = Bench(1)
    files = (records.FileFact(path="w.bin", size=1, digest=None),)
    bench.mark(0, 3, status="saved", path=str(tmp_path / "nowhere"), adopted=True, files=files)
    bench.mark(0, 4)

    def open_data(url: str):
        if why == "no answer":
            raise StoreError("no answer", key=url, retryable=True)
        return LocalStore(url)

    opener = Driver.over(bench.store, open_data, Patience())
    state = opener.settle()
    assert [fact.step for fact in state.commits.values()] == [4]
    entry = opener.journal.read(2)
    assert isinstance(entry, Abort)
    assert (entry.step, entry.reason) == (3, "data-unreadable")


class Forgetful(MemoryStore):
    """Lists markers and never shows them."""

    def read(self, key: str) -> bytes | None:
        return None if key.startswith("markers/") else super().read(key)


@pytest.mark.rule("L6", "B7")
@pytest.mark.parametrize("how", ["settled", "at the deadline"])
def test_a_marker_that_is_listed_and_never_reads_keeps_no_step_open(how):
    bench = Bench(1, Forgetful())
    bench.mark(0, 3)
    assert not [entry for entry in bench.polls(3) if isinstance(entry, Abort)]
    if how == "settled":
        bench.driver.settle()
    else:
        bench.pass_s(TIMEOUT_S + 1)
        bench.polls()
    entry = bench.driver.journal.read(2)
    assert isinstance(entry, Abort)
    assert entry.reason == "marker-damaged"


@pytest.mark.rule("B6")
def test_a_file_that_another_rank_needs_as_a_folder_is_a_conflict():
    """An object store holds `model` and `model/x`; nobody could download them."""
    bench = Bench(2)
    for rank, path in enumerate(("model", "model/x.bin")):
        own = layout.checkpoint_prefix(3, 1)
        bench.store.put(own + path, b"x")
        fact = records.FileFact(path=path, size=1, digest=records.sha256(b"x"))
        bench.mark(rank, 3, status="saved", path=own, files=(fact,))
    (abort,) = [entry for entry in bench.polls(2) if isinstance(entry, Abort)]
    assert (abort.reason, abort.ranks) == ("shard-conflict", ((0, 1),))
    assert "'model' is a file" in abort.detail


def test_a_damaged_farewell_bars_nobody():
    bench = Bench(2)
    bench.store.put(layout.farewell_key(1, 1, "0" * 16), b'{"torn":')
    bench.mark(0, 3)
    bench.polls(4)
    assert bench.driver.settle() is not None


def test_every_host_that_claimed_a_missing_rank_is_named():
    """One of them was refused; the other may be the one that hangs."""
    bench = Bench(2)
    for nonce, host in (("1" * 16, "alpha"), ("2" * 16, "beta")):
        seat = records.Seat(attempt=1, rank=1, nonce=nonce, host=host, pid=1, version="0", wall_time="")
        bench.store.put(layout.seat_key(1, 1, nonce), records.canonical(seat))
    bench.mark(0, 3)
    bench.polls(2)
    bench.pass_s(TIMEOUT_S + 1)
    (abort,) = bench.polls()
    assert isinstance(abort, Abort)
    assert [(culprit.rank, culprit.host) for culprit in abort.culprits] == [(1, "alpha or beta")]
