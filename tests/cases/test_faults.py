"""Cases from the field about what stands between us and the store: 13, 14, 15, 17."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from tests.behaviours.fleet import Place, shard

import tallymark
from tallymark import inventory, layout, records
from tallymark.records import Marker
from tallymark.register import Patience

BRIEF = Patience(timeout_s=1.5, longest_pause_s=0.2)
SLOT_2 = r"/journal/0000000002\.json"


def one_complete_step(place: Place, folder: Path, step: int = 0) -> None:
    """A run whose slots 0 and 1 are taken, and whose first step waits for a driver."""
    with place.join(host_driver=False) as worker:
        worker.report({"loss": 0.5}, shard(folder, {"a.bin": "x"}), step=step)
    assert [type(entry).__name__ for entry in place.entries()] == ["Genesis", "Attempt"]


def commits_of(poll: tallymark.Poll) -> list[records.Commit]:
    return [entry for entry in poll.entries if isinstance(entry, records.Commit)]


def standing(place: Place) -> records.Commit:
    """The one commit in the journal."""
    [commit] = place.entries(records.Commit)
    assert [type(entry).__name__ for entry in place.entries()] == ["Genesis", "Attempt", "Commit"]
    found: records.Commit = commit
    return found


@pytest.mark.rule("J8", "G1")
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_commit_whose_reply_is_lost_is_told_as_success(s3_place, proxied_place, proxy, tmp_path, times):
    """Case 13: the server has applied it; however often the client asks again."""
    one_complete_step(s3_place, tmp_path / "s")
    proxy.add("PUT", SLOT_2, times=times, drop_reply=True)
    [told] = commits_of(proxied_place.driver().poll())
    assert told == standing(s3_place)
    assert len({request.body for request in proxy.requests("PUT", SLOT_2)}) == 1


@pytest.mark.rule("J8", "J9")
@pytest.mark.parametrize("fault", [{"drop_reply": True}, {"reset": True}, {"answer": 409}, {"answer": 503}])
def test_a_commit_that_meets_anothers_entry_is_told_that_one(s3_place, proxied_place, proxy, tmp_path, fault):
    """Case 13: another driver is there first, and the reply says nothing of it."""
    one_complete_step(s3_place, tmp_path / "s")
    held = proxy.add("PUT", SLOT_2, hold=True, drop_reply=True)
    more = proxy.add("PUT", SLOT_2, **fault)
    told: list[records.Commit] = []
    thread = threading.Thread(target=lambda: told.extend(commits_of(proxied_place.driver().poll())))
    thread.start()
    assert held.arrived.wait(60)
    [first] = commits_of(s3_place.driver().poll())
    held.release()
    thread.join(60)
    assert told == [first] == [standing(s3_place)]
    assert more.hits <= 1


@pytest.mark.rule("J8", "J10")
def test_one_conflict_is_retried_and_commits(s3_place, proxied_place, proxy, tmp_path):
    """Case 14: a 409 says nothing about what is in the slot."""
    one_complete_step(s3_place, tmp_path / "s")
    fault = proxy.add("PUT", SLOT_2, answer=409)
    [told] = commits_of(proxied_place.driver().poll())
    assert told == standing(s3_place) and fault.hits == 1


@pytest.mark.rule("J10", "J11")
def test_conflicts_for_ever_end_as_unknown_with_nothing_in_the_slot(s3_place, proxied_place, proxy, tmp_path):
    """Case 14: never "already committed"; and the same driver commits once the server lets it."""
    one_complete_step(s3_place, tmp_path / "s")
    fault = proxy.add("PUT", SLOT_2, times=None, answer=409)
    driver = proxied_place.driver(BRIEF)
    with pytest.raises(tallymark.CommitUnknown, match="0000000002"):
        driver.poll()
    assert fault.hits >= 2
    assert s3_place.store().read(layout.slot_key(2)) is None
    assert proxy.requests("PUT", r"/journal/0000000003") == []
    assert proxy.requests("DELETE|POST", ".") == []
    sent = {request.body for request in proxy.requests("PUT", SLOT_2)}
    fault.times = 0
    [told] = commits_of(driver.poll())
    assert told == standing(s3_place)
    assert {request.body for request in proxy.requests("PUT", SLOT_2)} == sent and len(sent) == 1


@pytest.mark.rule("J10", "J8")
def test_a_create_that_lands_after_a_read_said_absent_is_told_truly(s3_place, proxied_place, proxy, tmp_path):
    """Case 15: the same bytes go to the same slot until it reads back, and nothing is cleaned up meanwhile."""
    one_complete_step(s3_place, tmp_path / "s")
    late = proxy.add("PUT", SLOT_2, hold=True, cut=True)
    proxy.add("PUT", SLOT_2, times=None, reset=True)
    told: list[records.Commit] = []
    thread = threading.Thread(target=lambda: told.extend(commits_of(proxied_place.driver().poll())))
    thread.start()
    assert late.arrived.wait(60)
    while not any(seen.status == 404 for seen in proxy.requests("GET", SLOT_2)):
        assert thread.is_alive()
    assert s3_place.store().read(layout.slot_key(2)) is None
    late.release()
    thread.join(60)
    assert told == [standing(s3_place)]
    assert len({request.body for request in proxy.requests("PUT", SLOT_2)}) == 1
    landed = next(index for index, seen in enumerate(proxy.seen) if seen.method == "GET" and seen.status == 404)
    assert not [seen for seen in proxy.seen[:landed] if seen.method in ("DELETE", "POST")]


@pytest.mark.rule("J11")
def test_a_create_that_lands_after_its_writer_gave_up_is_found_by_the_next_look(
    s3_place, proxied_place, proxy, tmp_path
):
    """Case 15: until then the outcome is called unknown, and afterwards it is the one commit."""
    one_complete_step(s3_place, tmp_path / "s")
    late = proxy.add("PUT", SLOT_2, hold=True, cut=True)
    rest = proxy.add("PUT", SLOT_2, times=None, reset=True)
    driver = proxied_place.driver(BRIEF)
    with pytest.raises(tallymark.CommitUnknown):
        driver.poll()
    assert proxy.requests("DELETE|POST", ".") == []
    assert s3_place.open().latest() is None
    late.release()
    assert late.landed.wait(60)
    rest.times = 0
    [told] = commits_of(driver.poll())
    assert told == standing(s3_place)


def write_markers(size: int) -> list[tuple[str, bytes]]:
    """The markers of step 0 of attempt 1: metrics only."""
    made = []
    for rank in range(size):
        marker = Marker(
            attempt=1, step=0, first_rank=rank, last_rank=rank, seats=(f"{rank:016x}",), status="empty", host="h",
            pid=1, path=None, adopted=False, kind="files", metadata={}, files=(), metrics={"rank": rank},
            durations_s={}, cause="", version="test",
        )  # fmt: skip
        body = records.canonical(marker)
        made.append((layout.marker_key(1, 0, inventory.name_of(marker, body)), body))
    return made


def put_all(place: Place, objects: list[tuple[str, bytes]]) -> None:
    """By bare requests, four at a time: the client's own cost would be most of the test."""
    assert place.storage_options is not None
    address = urlsplit(place.storage_options["endpoint_url"])
    path = "/" + place.url.removeprefix("s3://")

    def put(part: list[tuple[str, bytes]]) -> None:
        for key, body in part:
            connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
            connection.request("PUT", quote(f"{path}/{key}"), body)
            assert connection.getresponse().status == 200
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, [objects[start::4] for start in range(4)]))


@pytest.mark.rule("B12")
@pytest.mark.timeout(240)
def test_two_and_a_half_thousand_markers_are_seen_whatever_befalls_page_two(s3_place, proxied_place, proxy):
    """Case 17: a page that fails is asked for again, or the look fails; a thousand is never the whole.

    The markers are written by this process, by the library's own records and names; one is missing at first, so that
    every poll has to say whom it waits for.
    """
    size = 2500
    with s3_place.join(world_size=size, host_driver=False):
        pass
    s3_place.store().delete(s3_place.keys("members/"))
    made = write_markers(size)
    missing = 1777
    put_all(s3_place, made[:missing] + made[missing + 1 :])
    page_two = r"list-type=2.*continuation-token=.*markers|list-type=2.*markers.*continuation-token="
    faults: dict[str, dict[str, Any]] = {
        "none": {},
        "reset": {"reset": True},
        "503": {"answer": 503},
        "broken XML": {"change": lambda body: b"<ListBucketResult><IsTrunc"},
        "no body": {"change": lambda body: b""},
        "another document": {"change": lambda body: b"<html><body>busy</body></html>"},
        "cut short": {"truncate": 5000},
    }
    for name, fault in faults.items():
        planned = proxy.add("GET", page_two, **fault) if fault else None
        poll = proxied_place.driver().poll()
        assert (name, poll.step, poll.waiting_for[:8]) == (name, 0, (missing,))
        assert planned is None or planned.hits == 1, name
    driver = proxied_place.driver(BRIEF)
    lasting = proxy.add("GET", page_two, times=None, answer=503)
    with pytest.raises(tallymark.StoreError):
        driver.poll()
    lasting.times = 0
    assert proxy.requests("DELETE", ".") == [] == proxy.requests("POST", ".")
    assert proxy.requests("PUT", "/journal/") == []
    put_all(s3_place, [made[missing]])
    [told] = commits_of(driver.poll())
    assert told.reporting_ranks == ((0, size - 1),) and told.metrics == {"rank": 0}
    assert s3_place.keys("markers/") == []
