"""The worker when the store fails it: what is kept, what is told, and what a second call does."""

from __future__ import annotations

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
