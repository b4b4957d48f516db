"""The worker when the store fails it: what is kept, what is told, and what a second call does."""

from __future__ import annotations

import time

import pytest

import tallymark
from tallymark import layout
from tallymark.errors import StoreDenied, StoreError, Superseded, UsageError, WaitTimeout
from tallymark.register import Patience
from tallymark.store.memory import MemoryStore


class Moody(MemoryStore):
    """A store that refuses to put keys beginning with `refused` (nothing if ""), for now or for good."""

    refused = ""
    for_good = False

    def put(self, key: str, body: bytes) -> None:
        if self.refused and key.startswith(self.refused):
            if self.for_good:
                raise StoreDenied("no permission", key=key)
            raise StoreError("no answer", key=key, retryable=True)
        super().put(key, body)


def join(store: MemoryStore, rank: int = 0, **more) -> tallymark.Worker:
    terms = {"world_size": 1, "launch_id": "a", "store_timeout_s": 0.1, "host_driver": False, **more}
    return tallymark.join(None, rank=rank, store=store, **terms)


def count(store: MemoryStore, prefix: str) -> int:
    return len(list(store.list(prefix)))


@pytest.mark.rule("B9")
def test_the_same_report_again_publishes_what_the_first_could_not():
    store = Moody()
    worker = join(store)
    store.refused = "markers/"
    with pytest.raises(StoreError):
        worker.report({"loss": 1.0}, step=0)
    with pytest.raises(StoreError):
        worker.report({"loss": 1.0}, step=0)
    store.refused = ""
    report = worker.report({"loss": 1.0}, step=0)
    assert count(store, "markers/") == 1
    assert report.wait(30).metrics == {"loss": 1.0}
    worker.leave()


def test_a_word_that_is_not_published_yet_is_not_called_an_abort(caplog):
    store = Moody()
    worker = join(store, on_error="warn")
    store.refused = "markers/"
    report = worker.report({}, step=0)
    assert "not published yet" in caplog.text
    assert "abort" not in caplog.text
    store.refused = ""
    assert report.wait(30).step == 0
    worker.leave()


def test_a_waiter_whose_own_word_is_refused_for_good_is_told():
    store = Moody()
    worker = join(store, on_error="warn")
    store.refused, store.for_good = "markers/", True
    report = worker.report({}, step=0)
    with pytest.raises(StoreDenied):
        report.wait(30)


@pytest.mark.rule("L15")
def test_leaving_may_be_tried_again_until_it_is_said():
    store = Moody()
    worker = join(store)
    store.refused = "m"
    with pytest.raises(StoreError):
        worker.report({}, step=0)
    with pytest.raises(StoreError):
        worker.leave()
    with pytest.raises(UsageError):
        worker.report({}, step=1)
    with pytest.raises(StoreError):
        worker.leave()
    store.refused = ""
    worker.leave()
    assert count(store, "markers/") == 1
    assert [layout.parse_member(key).left for key, _ in store.list("members/")] == [False, True]
    worker.leave()


def test_finishing_may_be_tried_again():
    store = Moody()
    worker = join(store)
    store.refused = "members/"
    with pytest.raises(StoreError):
        worker.finish("done")
    store.refused = ""
    worker.finish("done")
    assert tallymark.open(None, store=store).status().head.finished == "done"
    worker.finish("done")
    with pytest.raises(UsageError, match="was finished before, as 'done'"):
        worker.finish("failed")


def test_a_superseded_process_cannot_finish_the_run():
    store = MemoryStore()
    old = join(store)
    new = join(store, launch_id="b")
    with pytest.raises(Superseded):
        old.finish()
    assert tallymark.open(None, store=store).status().head.finished is None
    new.leave()


def test_a_wait_that_ends_by_its_own_time_out_names_who_is_missing():
    store = MemoryStore()
    worker = join(store, world_size=3)
    other = join(store, rank=1, world_size=3)
    other.report({}, step=0)
    with pytest.raises(WaitTimeout, match=r"waiting for rank 2 \(not seated\); it is still open"):
        worker.report({}, step=0).wait(0.2)
    for bad in (float("nan"), -1):
        with pytest.raises(tallymark.InvalidInput, match="timeout_s"):
            worker.report({}, step=0).wait(bad)


def test_what_is_read_after_a_wait_has_the_patience_of_the_worker(tmp_path):
    store = MemoryStore()
    worker = join(store)
    (tmp_path / "shard").write_bytes(b"x")
    manifest = worker.report({}, tmp_path / "shard", step=0).wait(30)
    assert manifest.checkpoint._contents.patience == worker._patience != Patience()
    worker.leave()


@pytest.mark.rule("L15")
def test_an_abort_that_nobody_waited_for_is_told_when_the_rank_leaves(caplog):
    store = MemoryStore()
    worker = join(store, world_size=2, host_driver=True)
    other = join(store, rank=1, world_size=2)
    other.leave()
    worker.report({}, step=0)
    worker.leave()
    assert "step 0 was aborted (left)" in caplog.text


def test_a_rank_that_ends_by_an_exception_is_quoted_to_the_others():
    store = MemoryStore()
    worker = join(store, world_size=2)
    with pytest.raises(ValueError, match="cuda"), join(store, rank=1, world_size=2):
        raise ValueError("cuda is out of memory")
    with pytest.raises(tallymark.StepAborted, match="ValueError: cuda is out of memory"):
        worker.report({}, step=0).wait(60)


@pytest.mark.parametrize("status", [3, None, {}, "", "x" * 201, "two\nlines"])
def test_a_status_that_is_no_short_text_is_refused_before_leaving(status):
    worker = join(MemoryStore())
    with pytest.raises(tallymark.InvalidInput, match="status="):
        worker.finish(status)
    worker.report({}, step=0).wait(30)


@pytest.mark.parametrize("terms", [{"host_driver": "no"}, {"resume": None}, {"resume": True}, {"on_error": "ignore"}])
def test_terms_that_mean_nothing_are_refused_by_name(terms):
    with pytest.raises(tallymark.InvalidInput, match=f"{next(iter(terms))}="):
        join(MemoryStore(), **terms)


def test_a_url_as_a_local_checkpoint_is_refused_with_the_way_out():
    with pytest.raises(tallymark.InvalidInput, match=r"Checkpoint\.at"):
        join(MemoryStore()).report({}, "s3://bucket/data", step=0)


@pytest.mark.rule("L14")
def test_a_rank_that_had_to_drive_does_not_wait_for_others_again():
    worker = join(MemoryStore())
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    worker._patience = Patience(clock=lambda: now[0], sleep=sleep)
    took = []
    for step in range(3):
        began = now[0]
        worker.report({}, step=step).wait()
        took.append(now[0] - began)
    assert took[0] > 4.0
    assert max(took[1:]) < 1.0
    worker.leave()


class Interrupted(MemoryStore):
    """The first upload is interrupted from the keyboard, and its bytes land later."""

    late = None

    def upload(self, source, key):
        if self.late is None:
            self.late = (key, source.read_bytes())
            raise KeyboardInterrupt
        return super().upload(source, key)


def test_a_step_whose_upload_was_interrupted_is_spent(tmp_path):
    """Bytes of the first try may land at any time: they must not land in a committed checkpoint."""
    store = Interrupted()
    worker = join(store)
    shard = tmp_path / "shard"
    shard.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        worker.report({}, shard, step=5)
    shard.write_bytes(b"new")
    with pytest.raises(tallymark.InvalidInput, match="step 5 after step 5"):
        worker.report({}, shard, step=5)
    manifest = worker.report({}, shard, step=6).wait(30)
    store.put(*store.late)
    assert manifest.checkpoint.verify() == 1
    assert [entry.step for entry in tallymark.open(None, store=store).entries() if hasattr(entry, "reason")] == [5]
    worker.leave()


def test_an_exception_whose_text_is_no_unicode_is_still_told_to_the_others():
    store = MemoryStore()
    worker = join(store, world_size=2)
    with pytest.raises(OSError, match="caf"), join(store, rank=1, world_size=2):
        raise OSError("bad shard caf\udce9")
    with pytest.raises(tallymark.StepAborted) as told:
        worker.report({}, step=0).wait(60)
    assert told.value.reason == "left"


def test_a_folder_that_holds_the_run_is_not_saved_into_it(tmp_path):
    with tallymark.join(tmp_path / "out" / "run", rank=0, world_size=1, launch_id="a") as worker:
        for folder in (tmp_path / "out", tmp_path / "out" / "run"):
            with pytest.raises(tallymark.InvalidInput, match="holds the run itself"):
                worker.report({}, folder, step=0)


class Blip(MemoryStore):
    """Refuses to list while `refusing`."""

    refusing = False

    def list(self, prefix, after=""):
        if self.refusing:
            raise StoreDenied("token expired", key=prefix)
        return super().list(prefix, after)


def test_a_hosted_driver_outlives_a_refusal(monkeypatch):
    monkeypatch.setattr("tallymark.host.RETRY_FIRST_S", 0.05)
    store = Blip()
    worker = join(store, host_driver=True)
    store.refusing = True
    time.sleep(0.3)  # the driver polls every now and then, and meets the refusal
    report = worker.report({}, step=0)
    time.sleep(0.3)
    store.refusing = False
    assert report.wait(30).step == 0
    assert worker._host._thread.is_alive()
    worker.leave()


def test_a_download_follows_a_link_to_an_empty_folder(tmp_path):
    (tmp_path / "shard").write_bytes(b"x")
    (tmp_path / "volume").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "volume")
    with tallymark.join(tmp_path / "run", rank=0, world_size=1, launch_id="a") as worker:
        checkpoint = worker.report({}, tmp_path / "shard", step=0).wait(30).checkpoint
    checkpoint.download(tmp_path / "link")
    assert (tmp_path / "volume" / "shard").read_bytes() == b"x"
    with pytest.raises(FileExistsError, match="mount point"):
        checkpoint.download("/proc")


def test_times_beyond_all_measure_are_refused():
    with pytest.raises(tallymark.InvalidInput, match="barrier_timeout_s="):
        join(MemoryStore(), barrier_timeout_s=10**400)
    with pytest.raises(tallymark.InvalidInput, match="timeout_s="):
        join(MemoryStore()).report({}, step=0).wait("5")
