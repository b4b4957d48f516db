"""What only S3 does: codes and their meanings, pages, ranges, credentials, event loops and forks."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from tests.servers import KEY, SECRET, Reply, Request, S3Server, StubServer, moto_server, stub_server
from tests.store.conftest import BUCKET

from tallymark.errors import InvalidInput, StoreDenied, StoreError, UsageError
from tallymark.store.fsspec import FsspecStore
from tallymark.store.open import open_store
from tallymark.store.streams import SourceFailed, read_source


@pytest.fixture(scope="module")
def one_stub() -> Iterator[StubServer]:
    with stub_server() as stub:
        yield stub


@pytest.fixture
def stub(one_stub: StubServer) -> StubServer:
    one_stub.requests.clear()
    return one_stub


@pytest.fixture
def store(stub: StubServer) -> FsspecStore:
    options = stub.storage_options
    once = {**options["config_kwargs"], "retries": {"total_max_attempts": 1}}
    return FsspecStore("bucket/run", storage_options={**options, "config_kwargs": once})


def error(status: int, code: str, message: str = "so it is") -> Reply:
    return Reply(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(200), True),
        (error(412, "PreconditionFailed"), False),
        (error(412, "SomethingElse"), False),
        (Reply(412), False),
        (error(409, "ConditionalRequestConflict"), "passing"),
        (error(409, "OperationAborted"), "passing"),
        (error(429, "TooManyRequests"), "passing"),
        (error(500, "InternalError"), "passing"),
        (error(503, "SlowDown"), "passing"),
        (Reply(502, b"<html>bad gateway</html>"), "passing"),
        (Reply(0), "passing"),
        (error(404, "NoSuchBucket"), "denied"),
        (error(403, "AccessDenied"), "denied"),
        (error(403, "InvalidAccessKeyId"), "denied"),
        (error(403, "SignatureDoesNotMatch"), "denied"),
        (error(400, "ExpiredToken"), "denied"),
        (error(400, "KeyTooLongError"), "lasting"),
        (error(501, "NotImplemented"), "lasting"),
    ],
)
def test_what_an_answer_to_create_means(stub: StubServer, store: FsspecStore, reply: Reply, outcome: Any) -> None:
    stub.answer = lambda request: reply
    if isinstance(outcome, bool):
        assert store.create("journal/0", b"body") is outcome
        assert stub.requests[0].headers["If-None-Match"] == "*" and stub.requests[0].path == "/bucket/run/journal/0"
        assert len(stub.requests) == 1
        return
    with pytest.raises(StoreError) as caught:
        store.create("journal/0", b"body")
    assert isinstance(caught.value, StoreDenied) is (outcome == "denied")
    assert caught.value.retryable is (outcome == "passing") and caught.value.key == "journal/0"
    assert caught.value.__cause__ is not None and "journal/0" in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(200, b"body"), b"body"),
        (error(404, "NoSuchKey"), None),
        (error(404, "NoSuchBucket"), StoreDenied),
        (Reply(404, b"<html>the gateway knows no such page</html>"), StoreError),
        (error(403, "AccessDenied"), StoreDenied),
        (error(503, "ServiceUnavailable"), StoreError),
        (Reply(200, b"bo", {"Content-Length": "4"}), StoreError),
    ],
)
def test_what_an_answer_to_read_means(stub: StubServer, store: FsspecStore, reply: Reply, outcome: Any) -> None:
    stub.answer = lambda request: reply
    if isinstance(outcome, type):
        with pytest.raises(outcome) as caught:
            store.read("a")
        assert isinstance(caught.value, StoreError) and caught.value.retryable is (outcome is StoreError)
    else:
        assert store.read("a") == outcome


def test_a_head_is_taken_at_its_word_and_an_error_is_not_absence(stub: StubServer, store: FsspecStore) -> None:
    stub.answer = lambda request: Reply(404)
    assert store.size("a") is None
    for status, denied in ((403, True), (500, False), (503, False)):
        reply = Reply(status)
        stub.answer = lambda request, reply=reply: reply  # type: ignore[misc]
        with pytest.raises(StoreError) as caught:
            store.size("a")
        assert isinstance(caught.value, StoreDenied) is denied


def page(keys: list[str], *, token: str = "", truncated: bool = False) -> Reply:
    contents = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    flag = f"<IsTruncated>{'true' if truncated else 'false'}</IsTruncated>"
    return Reply(200, f"<ListBucketResult>{flag}{contents}{more}</ListBucketResult>".encode())


def test_pages_are_followed_until_the_server_says_it_was_the_last(stub: StubServer, store: FsspecStore) -> None:
    def answer(request: Request) -> Reply:
        if "continuation-token=two" in request.path:
            return page(["run/m/3"], truncated=True)  # No token: some servers forget it.
        if "start-after=run%2Fm%2F3" in request.path:
            return page(["run/m/4", "run/m/", "other/x"])
        return page(["run/m/0", "run/m/1"], token="two", truncated=True)

    stub.answer = answer
    assert [key for key, _ in store.list("m/", "m/0")] == ["m/1", "m/3", "m/4"]
    assert "start-after=run%2Fm%2F0" in stub.requests[0].path and "prefix=run%2Fm%2F" in stub.requests[0].path


@pytest.mark.parametrize(
    "second",
    [error(503, "SlowDown"), Reply(0), Reply(200, b"<ListBucketResult><Contents>"), page([], truncated=True)],
)
def test_a_listing_that_cannot_be_finished_raises(stub: StubServer, store: FsspecStore, second: Reply) -> None:
    first = page(["run/m/1"], token="two", truncated=True)
    stub.answer = lambda request: second if "continuation-token" in request.path else first
    listing = store.list("m/")
    assert next(listing).key == "m/1"
    with pytest.raises(StoreError) as caught:
        next(listing)
    assert caught.value.retryable


def test_failed_deletes_are_told_key_by_key(stub: StubServer, store: FsspecStore) -> None:
    stub.answer = lambda request: Reply(
        200,
        b"<DeleteResult><Error><Key>run/a</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        b"<Error><Key>run/b</Key><Code>NoSuchKey</Code><Message>none</Message></Error></DeleteResult>",
    )
    assert [tuple(failed) for failed in store.delete(["a", "b", "c"])] == [("a", "AccessDenied: no")]
    stub.answer = lambda request: error(403, "AccessDenied")
    with pytest.raises(StoreDenied):
        store.delete(["a"])


def test_only_objects_under_the_prefix_are_asked_for(stub: StubServer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")

    def answer(request: Request) -> Reply:
        if request.method == "GET" and "list-type=2" in request.path:
            return page([])
        if request.method == "GET":
            return error(404, "NoSuchKey")
        return Reply(200, b"<DeleteResult></DeleteResult>" if request.method == "POST" else b"")

    stub.answer = answer
    store = open_store("s3://bucket/run", storage_options={**stub.storage_options, "cache_regions": True})
    store.put("a", b"1")
    assert store.read("a") is None and store.create("a", b"1") and store.size("a") == 0
    assert list(store.list("")) == [] and list(store.delete(["a"])) == []
    store.upload(tmp_path / "f", "f")
    assert len(stub.requests) == 7
    for request in stub.requests:
        listing = request.path.startswith("/bucket?list-type=2&prefix=run%2F")
        deleting = request.path == "/bucket?delete" and request.method == "POST"
        assert listing or deleting or request.path.startswith("/bucket/run/"), request.path


def test_a_server_that_never_answers_is_an_error_in_bounded_time(stub: StubServer) -> None:
    never = threading.Event()
    stub.answer = lambda request: Reply(never.wait(60) * 0)
    config = {**stub.storage_options["config_kwargs"], "read_timeout": 1}
    store = FsspecStore("bucket/run", storage_options={**stub.storage_options, "config_kwargs": config})
    try:
        with pytest.raises(StoreError) as caught:
            store.create("a", b"1")
        assert caught.value.retryable and len(stub.requests) == 2
    finally:
        never.set()


def test_a_dead_server_is_an_error(stub: StubServer) -> None:
    store = FsspecStore("bucket/run", storage_options={**stub.storage_options, "endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(StoreError) as caught:
        store.read("a")
    assert caught.value.retryable


# -- files --


def open_uploads(server: S3Server) -> list[Any]:
    client = server.client()
    try:
        found: list[Any] = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return found
    finally:
        client.close()


def test_a_failing_upload_leaves_nothing(moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"s3://{BUCKET}/failing", storage_options=moto.storage_options)
    (tmp_path / "big").write_bytes(b"x" * (40 << 20))
    blocks = []

    def failing_read(file: Any, size: int) -> bytes:
        blocks.append(size)
        if len(blocks) == 2:
            raise SourceFailed(OSError(5, "the disk is going"))
        return read_source(file, size)

    monkeypatch.setattr("tallymark.store.fsspec.read_source", failing_read)
    with pytest.raises(OSError, match="the disk is going") as caught:
        store.upload(tmp_path / "big", "shard")
    assert not isinstance(caught.value, StoreError)
    assert store.size("shard") is None and open_uploads(moto) == []


def test_an_object_that_is_replaced_while_it_is_read(moto: S3Server, tmp_path: Path) -> None:
    store = open_store(f"s3://{BUCKET}/replaced", storage_options=moto.storage_options)
    store.put("shard", b"1" * (3 << 20))
    with store.open("shard") as file:
        assert file.read(10) == b"1" * 10
        store.put("shard", b"2" * (3 << 20))
        with pytest.raises(StoreError, match="replaced") as caught:
            file.read()
        assert caught.value.retryable


def test_a_broken_download_leaves_no_file(stub: StubServer, store: FsspecStore, tmp_path: Path) -> None:
    size = 20 << 20

    def answer(request: Request) -> Reply:
        start, stop = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        if start:
            return error(500, "InternalError")
        return Reply(206, bytes(stop + 1), {"Content-Range": f"bytes 0-{stop}/{size}", "ETag": '"e"'})

    stub.answer = answer
    with pytest.raises(StoreError):
        store.download("shard", tmp_path / "target")
    assert os.listdir(tmp_path) == []


def test_a_body_that_breaks_off_once_is_asked_for_again(stub: StubServer, store: FsspecStore) -> None:
    replies = [Reply(200, b"bo", {"Content-Length": "4"}), Reply(200, b"body")]
    stub.answer = lambda request: replies[len(stub.requests) - 1]
    assert store.read("a") == b"body" and len(stub.requests) == 2


# -- the filesystem and its secrets --


def test_the_users_own_filesystem_is_left_alone(moto: S3Server) -> None:
    own = s3fs.S3FileSystem(**moto.storage_options, use_listings_cache=True)
    own.pipe_file(f"{BUCKET}/own/1", b"1")
    assert [Path(name).name for name in own.ls(f"{BUCKET}/own", detail=False)] == ["1"]
    before = dict(own.dircache), own.dircache.use_listings_cache, dict(own.storage_options), own.retries
    for url in (f"s3://{BUCKET}/own", f"{BUCKET}/own"):
        store = open_store(url, store=own)
        store.put("2", b"2")
        assert [key for key, _ in store.list("")] == ["1", "2"]
        assert store.url == f"s3://{BUCKET}/own" and SECRET not in repr(store)
    assert before == (dict(own.dircache), own.dircache.use_listings_cache, dict(own.storage_options), own.retries)
    assert own is s3fs.S3FileSystem(**moto.storage_options, use_listings_cache=True)


def test_secrets_are_shown_nowhere(stub: StubServer) -> None:
    store = FsspecStore("bucket/run", storage_options=stub.storage_options)
    stub.answer = lambda request: error(403, "SignatureDoesNotMatch", f"you signed with {KEY} and {SECRET}")
    with pytest.raises(StoreDenied) as caught:
        store.read("a")
    shown = "".join(traceback.format_exception(caught.value)) + repr(store) + str(store)
    assert SECRET not in shown and KEY not in shown and "***" in shown
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UsageError):
            way(store)
    with pytest.raises(InvalidInput) as refused:
        FsspecStore("bucket/run", storage_options={**stub.storage_options, "config_kwargs": {"no": SECRET}}).read("a")
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_it_works_inside_a_running_event_loop(moto: S3Server) -> None:
    store = open_store(f"s3://{BUCKET}/loop", storage_options=moto.storage_options)

    async def main() -> bytes | None:
        store.put("a", b"1")
        return await asyncio.to_thread(store.read, "a")

    assert asyncio.run(main()) == b"1"


SCRIPT = """
import json, os, sys, threading
from tallymark.errors import UsageError
from tallymark.store.open import open_store
from tallymark.store.streams import SourceFailed, read_source

options = json.loads(sys.argv[2])
store = open_store(sys.argv[1], storage_options=options)
store.put("a", b"1")
assert store.read("a") == b"1" and [key for key, _ in store.list("")] == ["a"]
"""

FORK = """
listing = store.list("")
child = os.fork()
if not child:
    refused = 0
    for call in (lambda: store.read("a"), lambda: store.put("a", b"2"), lambda: store.list(""), lambda: next(listing),
                 lambda: store.size("a"), lambda: store.delete(["a"])):
        try:
            call()
        except UsageError:
            refused += 1
    fresh = open_store(sys.argv[1], storage_options=options)
    os._exit(0 if refused == 6 and fresh.read("a") == b"1" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.read("a") == b"1"
"""

LEAVE = """
with store.open("a") as file:
    file.read()
names = {thread.name.partition("_")[0] for thread in threading.enumerate()}
assert names <= {"MainThread", "fsspecIO", "asyncio"}, names  # "asyncio_0" resolves names for fsspec's loop.
"""


@pytest.mark.parametrize(("end", "warnings"), [(FORK, "ignore::DeprecationWarning"), (LEAVE, "error")])
def test_in_a_process_of_its_own(moto: S3Server, end: str, warnings: str) -> None:
    command = [sys.executable, "-W", "error", "-W", warnings, "-c", SCRIPT + end]
    arguments = [f"s3://{BUCKET}/own-process", json.dumps(moto.storage_options)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_bucket_and_a_server_that_went_away(tmp_path: Path) -> None:
    with moto_server() as server:
        store = open_store("s3://no-such-bucket/run", storage_options=server.storage_options)
        for call in (
            lambda: store.read("a"),
            lambda: store.create("a", b"1"),
            lambda: list(store.list("")),
            lambda: store.delete(["a"]),
            lambda: store.open("a"),
            lambda: store.download("a", tmp_path / "target"),
        ):
            with pytest.raises(StoreDenied, match="NoSuchBucket"):
                call()
    with pytest.raises(StoreError) as caught:
        store.read("a")
    assert caught.value.retryable and not isinstance(caught.value, StoreDenied)
