"""How a process ends: at once, without leaks, with a word to the others; and what a fork may and may not do.

Each script is an interpreter of its own, in which every warning is an error and everything on stderr is a fault.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.endurance.places import Place
from tests.servers import ministack_server

import tallymark

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE_S = 5.0
START_S = 60.0
HEAD = """
import gc, json, os, sys, threading
import tallymark
from tallymark.store.open import open_store
from tallymark.testing.counting import CountingStore

url, options = json.loads(sys.argv[1])

def say(word):
    print(word, flush=True)

def shard():
    import pathlib, tempfile
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.getcwd()))
    (folder / "file.bin").write_bytes(b"x" * 100)
    return folder

def join(rank=0, world=1, **more):
    return tallymark.join(url, storage_options=options, rank=rank, world_size=world, launch_id="only", **more)
"""


@contextmanager
def script(body: str, place: Place, tmp: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", *flags, "-c", HEAD + textwrap.dedent(body)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TALLYMARK_", "SLURM_"))}
    with open(tmp / "stderr", "w") as err:
        process = subprocess.Popen(
            [*command, json.dumps([place.url, place.storage_options])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, cwd=tmp,
            env={**environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
    deadline = threading.Timer(START_S + 4 * AT_ONCE_S, process.kill)
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        deadline.join()
        process.kill()
        process.wait()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def line(process: subprocess.Popen[str], tmp: Path) -> str:
    assert process.stdout is not None
    found = process.stdout.readline().strip()
    assert found, f"the script ended:\n{(tmp / 'stderr').read_text()}"
    return found


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def ends_at_once(process: subprocess.Popen[str], tmp: Path) -> None:
    """From the end of its main, with nothing to complain about."""
    assert line(process, tmp) == "main ends"
    began = time.monotonic()
    process.wait(START_S)
    took_s = time.monotonic() - began
    assert (process.returncode, (tmp / "stderr").read_text()) == (0, "")
    assert took_s < AT_ONCE_S


# ---- ending without a farewell --------------------------------------------------------------------------------------


def test_a_job_that_ends_without_leaving_ends_at_once(place, tmp_path):
    body = """
        worker = join()
        worker.report({"loss": 1.0}, shard(), step=0).wait(60)
        worker.report({"loss": 1.0}, shard(), step=1)
        say("main ends")
    """
    with script(body, place, tmp_path) as process:
        ends_at_once(process, tmp_path)


def test_a_job_ends_at_once_while_the_hosted_driver_is_in_a_poll(place, tmp_path):
    """The driver's thread is held in the middle of a listing, for ever."""
    body = """
        held = threading.Event()
        def before(operation):
            if operation.thread == "tallymark-driver" and operation.name == "list":
                held.set()
                threading.Event().wait()
        store = CountingStore(open_store(url, storage_options=options))
        worker = tallymark.join(None, store=store, rank=0, world_size=2, launch_id="only")
        store.before = before
        worker.report({}, step=0)
        assert held.wait(60)
        say("main ends")
    """
    with script(body, place, tmp_path) as process:
        ends_at_once(process, tmp_path)


def test_a_job_ends_at_once_while_the_server_does_not_answer(tmp_path):
    """A request of the hosted driver is under way, and will never be answered."""
    body = """
        sent = threading.Event()
        store = CountingStore(open_store(url, storage_options=options))
        worker = tallymark.join(None, store=store, rank=0, world_size=2, launch_id="only")
        worker.report({}, step=0)
        say("ready")
        sys.stdin.readline()
        store.before = lambda operation: sent.set()
        if any(not operation.ended for operation in store.operations):
            sent.set()
        assert sent.wait(60)
        say("main ends")
    """
    with ministack_server() as server:
        server.make_bucket("exit")
        place = Place("s3", "s3://exit/run", server, server.storage_options)
        with script(body, place, tmp_path) as process:
            assert line(process, tmp_path) == "ready"
            os.kill(server.pid, signal.SIGSTOP)
            try:
                go(process)
                ends_at_once(process, tmp_path)
            finally:
                os.kill(server.pid, signal.SIGCONT)


# ---- leaks ----------------------------------------------------------------------------------------------------------


def test_no_thread_and_no_file_handle_is_left_after_leaving(place, tmp_path):
    body = """
        def handles():
            gc.collect()
            return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd != "3")

        def a_life():
            with join(resume="auto") as worker:
                for step in range(worker.first_step, worker.first_step + 3):
                    manifest = worker.report({"loss": 1.0}, shard(), step=step).wait(60)
            run = tallymark.open(url, storage_options=options)
            checkpoint = run.latest().checkpoint
            assert checkpoint.verify() == 1
            with checkpoint.open("file.bin") as stream:
                assert stream.read() == b"x" * 100
            checkpoint.download("target")

        before = handles()
        a_life()
        left = {thread.name for thread in threading.enumerate()} - {"MainThread"}
        theirs = {name for name in left if name == "fsspecIO" or name.startswith("asyncio_")}
        assert left == theirs, left  # fsspec's one loop, and that loop's own resolver of names
        if not options:
            assert not left
            assert handles() == before, (before, handles())
        gc.collect()
        say("main ends")
    """
    with script(body, place, tmp_path) as process:
        ends_at_once(process, tmp_path)


def test_a_join_that_fails_late_leaves_no_driver_behind(local, tmp_path):
    body = """
        with join(resume="auto") as worker:
            worker.report({}, shard(), step=0).wait(60)

        store = CountingStore(open_store(url))
        seen = []
        def before(operation):
            if operation.name == "list" and operation.key.startswith("members/000002"):
                seen.append(operation)  # the seat is taken: what is read now is the base
            if seen and operation.name == "read" and operation.thread == "MainThread":
                raise tallymark.StoreDenied("no", key=operation.key)
        store.before = before
        try:
            tallymark.join(None, store=store, rank=0, world_size=1, launch_id="second")
        except tallymark.StoreDenied:
            pass
        else:
            raise AssertionError("it joined")
        assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
        say("main ends")
    """
    with script(body, local, tmp_path) as process:
        ends_at_once(process, tmp_path)


# ---- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("L17")
def test_a_forked_child_is_told_at_once_and_may_join_anew(place, tmp_path):
    body = """
        worker = join(0, 2, barrier_timeout_s=600)
        report = worker.report({}, step=0)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                for call in (lambda: worker.report({}, step=1), report.done, report.wait, worker.leave, worker.finish,
                             worker.__enter__):
                    try:
                        call()
                    except tallymark.UsageError as problem:
                        assert "fork" in str(problem)
                    else:
                        raise AssertionError("a forked child used the worker")
                mine = join(1, 2, barrier_timeout_s=600)
                mine.report({}, shard(), step=0).wait(60)
                mine.leave()
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        assert report.wait(60).checkpoint.ranks == (1,)
        assert os.waitpid(pid, 0)[1] == 0
        worker.leave()
        say("main ends")
    """
    with script(body, place, tmp_path) as process:
        ends_at_once(process, tmp_path)


@pytest.mark.rule("L17")
def test_a_store_from_before_a_fork_is_refused_on_s3(s3, tmp_path):
    body = """
        run = tallymark.open(url, storage_options=options)
        assert run.latest() is None
        pid = os.fork()
        if not pid:
            try:
                run.latest()
            except tallymark.UsageError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        say("main ends")
    """
    with script(body, s3, tmp_path) as process:
        ends_at_once(process, tmp_path)


def test_a_spawned_child_works(place, tmp_path):
    (tmp_path / "spawned.py").write_text(
        textwrap.dedent("""
            import tallymark

            def rank_1(url, options):
                with tallymark.join(url, storage_options=options, rank=1, world_size=2, launch_id="only") as worker:
                    worker.report({}, step=0).wait(60)
        """)
    )
    body = """
        import multiprocessing
        sys.path.insert(0, os.getcwd())
        import spawned
        worker = join(0, 2)
        child = multiprocessing.get_context("spawn").Process(target=spawned.rank_1, args=(url, options))
        child.start()
        assert worker.report({}, shard(), step=0).wait(60).reporting_ranks == (0, 1)
        child.join(60)
        assert child.exitcode == 0
        child.close()
        worker.leave()
        say("main ends")
    """
    with script(body, place, tmp_path) as process:
        ends_at_once(process, tmp_path)


# ---- ending by an exception -----------------------------------------------------------------------------------------


@pytest.mark.rule("L15", "L16", "B4")
def test_an_exit_by_exception_says_farewell_and_the_others_abort_at_once(place, tmp_path):
    body = """
        try:
            with join(1, 2, barrier_timeout_s=600) as worker:
                worker.report({}, step=0)
                say("reported")
                sys.stdin.readline()
                raise ZeroDivisionError("the loss is gone")
        except ZeroDivisionError:
            say("main ends")
    """
    patience = {"barrier_timeout_s": 600, "store": place.store}
    worker = tallymark.join(None, rank=0, world_size=2, launch_id="only", **patience)
    with script(body, place, tmp_path) as process:
        assert line(process, tmp_path) == "reported"
        worker.report({}, step=0).wait(60)
        report = worker.report({}, step=1)
        go(process)
        ends_at_once(process, tmp_path)
    began = time.monotonic()
    with pytest.raises(tallymark.StepAborted) as caught:
        report.wait(60)
    took_s = time.monotonic() - began
    assert (caught.value.reason, caught.value.ranks) == ("left", (1,))
    worker.leave()
    farewells = [json.loads(body) for key, body in place.dump().items() if key.endswith(".left.json")]
    assert {(farewell["rank"], farewell["last_step"]) for farewell in farewells} == {(0, 1), (1, 0)}
    assert any("ZeroDivisionError: the loss is gone" in farewell["why"] for farewell in farewells)
    assert took_s < 2 * AT_ONCE_S


@pytest.mark.rule("L16")
def test_a_host_that_ends_by_an_exception_does_not_linger(place, tmp_path):
    body = """
        try:
            with join(0, 2, barrier_timeout_s=600) as worker:
                worker.report({}, step=0)
                say("main ends")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    """
    with script(body, place, tmp_path) as process:
        ends_at_once(process, tmp_path)
