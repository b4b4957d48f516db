"""The port's contract, the same for every store. What a store may do differently is not tested here."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.store.conftest import Place
from tests.store.racers import body_of, create_in_rounds, write_again_and_again

from tallymark.errors import InvalidInput
from tallymark.store.port import Listed, Moved, RunStore

ODD_NAMES = ("lr[1e-4]*{a}", "two words", "a+b", "%41", "#1", "what?", "größe-模型-🦙", "a=b&c", "'q'\"", "~tilde")


def keys_of(store: RunStore, prefix: str, after: str = "") -> list[str]:
    return [key for key, _ in store.list(prefix, after)]


def test_absent_is_none_and_nothing_else(place: Place) -> None:
    store = place.open()
    assert store.read("journal/0000000000.json") is None
    assert store.size("journal/0000000000.json") is None
    assert keys_of(store, "") == [] and keys_of(store, "journal/") == []
    store.put("a/b", b"1")
    assert store.read("a") is None and store.size("a") is None and store.read("a/b/c") is None


def test_create_writes_once_and_put_replaces(place: Place) -> None:
    store = place.open()
    assert store.create("journal/0000000000.json", b"first") is True
    assert store.create("journal/0000000000.json", b"second") is False
    assert store.read("journal/0000000000.json") == b"first"
    store.put("journal/0000000000.json", b"third")
    assert store.read("journal/0000000000.json") == b"third" and store.size("journal/0000000000.json") == 5


def test_promises(place: Place) -> None:
    store = place.open()
    assert store.creates_exclusively and store.lists_in_order and store.visibility_delay_s == 0.0
    assert store.all_clients_create is (place.kind == "local")
    assert store.url == place.url and place.url.removeprefix("memory://") in repr(store)


@pytest.mark.parametrize("key", ["", "/a", "a//b", "a/", "../a", "a/../b", "./a", "a\0b"])
def test_what_is_not_a_key_is_refused(place: Place, key: str) -> None:
    store = place.open()
    for call in (store.read, store.size, store.open, lambda k: store.create(k, b"1"), lambda k: store.put(k, b"1")):
        with pytest.raises(InvalidInput):
            call(key)
    with pytest.raises(InvalidInput):
        store.delete([key])


def test_one_winner_among_threads(place: Place) -> None:
    # moto checks and then writes: the shape is right, the race is not its to judge.
    rounds = 1 if place.kind == "moto" else 10
    stores = [place.open() for _ in range(4)]
    with ThreadPoolExecutor(32) as pool:
        for number in range(rounds):
            key = f"race/{number:04d}"
            won = list(pool.map(lambda who, key=key: stores[who % 4].create(key, body_of(who)), range(32)))
            assert stores[0].read(key) in {body_of(who) for who in range(32)}
            if place.kind != "moto":
                assert [body_of(who) for who in range(32) if won[who]] == [stores[0].read(key)]


@pytest.mark.timeout(300)
def test_one_winner_among_processes(judge: Place) -> None:
    rounds, racers = 20, 8
    spawn = multiprocessing.get_context("spawn")
    together, results = spawn.Barrier(racers), spawn.Queue()
    processes = [
        spawn.Process(target=create_in_rounds, args=(judge.url, judge.storage_options, who, rounds, together, results))
        for who in range(racers)
    ]
    for process in processes:
        process.start()
    winners: dict[int, list[int]] = {}
    for _ in processes:
        who, won = results.get(timeout=120)
        for number in won:
            winners.setdefault(number, []).append(who)
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    results.close()
    results.join_thread()
    store = judge.open()
    assert Counter(map(len, winners.values())) == {1: rounds}
    for number, (who,) in winners.items():
        assert store.read(f"race/{number:04d}") == body_of(who)


def test_no_torn_read_while_processes_write(tmp_path: Path) -> None:
    place = Place("local", str(tmp_path / "run"))
    store = place.open()
    store.put("hint.json", body_of(0))
    spawn = multiprocessing.get_context("spawn")
    started, stop = spawn.Barrier(3), spawn.Event()
    writers = [spawn.Process(target=write_again_and_again, args=(place.url, who, started, stop)) for who in (1, 2)]
    for writer in writers:
        writer.start()
    whole = {body_of(who) for who in range(3)}
    try:
        started.wait(60)
        for _ in range(3000):
            assert store.read("hint.json") in whole
        for key, size in store.list(""):
            assert size == len(body_of(0)) and store.read(key) in whole
    finally:
        stop.set()
        for writer in writers:
            writer.join(30)
    assert [writer.exitcode for writer in writers] == [0, 0]


def test_listing_is_in_byte_order_of_whole_keys(place: Place) -> None:
    store = place.open()
    keys = ["a-", "a/b", "a/b-/x", "a/b/x", "a0", "a/Z", "A", "a", "é/x", "z/0", "a!/x", "🦙", "\ufffd"]
    if place.kind == "local":
        keys = [key for key in keys if key not in ("a", "a/b")]  # A folder has the name.
    for key in keys:
        store.put(key, b"x" * len(key))
    in_order = sorted(keys, key=str.encode)
    assert list(store.list("")) == [Listed(key, len(key)) for key in in_order]
    for after in [*in_order, "a.", "a/", "zzz", "0"]:
        assert keys_of(store, "", after) == [key for key in in_order if key.encode() > after.encode()], after


def test_prefixes(place: Place) -> None:
    store = place.open()
    names = ("exp-1/x", "exp-10/x", "members/000002/000003.aa.json", "members/000002/000003.aa.left.json")
    for key in (*names, "members/000002/000004.bb.json", "members/000020/000003.cc.json"):
        store.put(key, b"1")
    assert keys_of(store, "exp-1/") == ["exp-1/x"]
    assert keys_of(store, "exp-1") == ["exp-1/x", "exp-10/x"]
    assert keys_of(store, "members/000002/000003.") == list(names[2:])
    assert keys_of(store, "members/000002/000003.", names[2]) == [names[3]]
    assert keys_of(store, "members/00000") == [*names[2:], "members/000002/000004.bb.json"]
    assert keys_of(store, "nothing/here/") == [] and keys_of(store, "exp-1/x/") == []


@pytest.mark.timeout(300)
def test_a_listing_goes_over_every_page(place: Place) -> None:
    store = place.open()
    keys = [f"markers/{number:08d}" for number in range(2500)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(store.put, keys, [b"1"] * len(keys)))
    assert keys_of(store, "markers/") == keys
    assert keys_of(store, "markers/", keys[1234]) == keys[1235:]
    assert store.delete(keys[:2200]) == []
    assert keys_of(store, "") == keys[2200:]


def test_another_clients_write_is_seen_at_once(place: Place) -> None:
    one, other = place.open(), place.open()
    assert keys_of(one, "m/") == [] and one.read("m/1") is None
    for number in range(1, 4):
        other.put(f"m/{number}", b"1")
        assert keys_of(one, "m/") == [f"m/{n}" for n in range(1, number + 1)]
        assert one.read(f"m/{number}") == b"1" and one.size(f"m/{number}") == 1
    other.delete(["m/2"])
    assert keys_of(one, "m/") == ["m/1", "m/3"] and one.read("m/2") is None


def test_deleting_what_is_not_there_is_no_failure(place: Place) -> None:
    store = place.open()
    store.put("a/1", b"1")
    store.put("a/2", b"1")
    assert list(store.delete(["a/1", "a/none", "none/at/all", "a/1/under-a-file"])) == []
    assert list(store.delete([])) == []
    assert keys_of(store, "") == ["a/2"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_exact(place: Place, name: str) -> None:
    run, sibling = place.at(name).open(), place.at(name + "1").open()
    run.put(f"{name}/{name}", b"1")
    sibling.put("x", b"1")
    assert run.create(f"{name}/x", b"2") and not run.create(f"{name}/x", b"3")
    assert sorted(keys_of(run, "")) == sorted([f"{name}/{name}", f"{name}/x"])
    assert keys_of(run, f"{name}/", f"{name}/{name}") == [k for k in [f"{name}/x"] if k > f"{name}/{name}"]
    assert run.read(f"{name}/{name}") == b"1" and run.size(f"{name}/x") == 1
    assert list(run.delete([f"{name}/{name}", f"{name}/x"])) == []
    assert keys_of(run, "") == [] and keys_of(sibling, "") == ["x"]


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1, 40 << 20])
def test_files_go_and_come_back(place: Place, tmp_path: Path, size: int) -> None:
    store = place.open()
    source, target = tmp_path / "source", tmp_path / "new" / "target"
    body = os.urandom(1 << 20) * (size >> 20) + os.urandom(size % (1 << 20))
    source.write_bytes(body)
    expected = Moved(size, hashlib.sha256(body).hexdigest())
    tracemalloc.start()
    try:
        assert store.upload(source, "shards/model [0].bin") == expected
        assert store.download("shards/model [0].bin", target) == expected
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if place.kind == "local":
        assert peak < 8 << 20
    elif place.kind != "memory":
        assert peak < 64 << 20
    assert target.read_bytes() == body and os.listdir(target.parent) == ["target"]
    assert store.size("shards/model [0].bin") == size
    assert list(store.list("")) == [Listed("shards/model [0].bin", size)]
    with store.open("shards/model [0].bin") as file:
        assert hashlib.sha256(file.read()).hexdigest() == expected.digest
        assert file.seek(-min(size, 10), os.SEEK_END) == size - min(size, 10)
        assert file.read() == body[size - min(size, 10) :] and file.read(1) == b""
        assert file.seek(size // 2) == size // 2 and file.read(3) == body[size // 2 : size // 2 + 3]
        assert file.seekable() and file.readable() and not file.writable()
    local = store.local_path("shards/model [0].bin")
    assert local is None if place.kind != "local" else local is not None and local.read_bytes() == body


def test_a_file_that_is_absent(place: Place, tmp_path: Path) -> None:
    store = place.open()
    with pytest.raises(FileNotFoundError):
        store.open("none")
    with pytest.raises(FileNotFoundError):
        store.download("none", tmp_path / "new" / "target")
    assert not list(tmp_path.rglob("*target*")) and not list(tmp_path.rglob(".tallymark*"))
    with pytest.raises(FileNotFoundError):
        store.upload(tmp_path / "no-such-source", "a/b")
    with pytest.raises(IsADirectoryError):
        store.upload(tmp_path, "a/b")
    assert keys_of(store, "") == []
