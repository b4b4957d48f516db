"""One rank of a job, which does what a plan says: `python rank.py < plans.json`.

A plan is a dict:

    url, as_path, storage_options, cwd     where; `as_path` gives the URL as a pathlib.Path
    join                                   the other arguments of `tallymark.join`
    actions                                what to do, one after another; see `_Rank`
    hooks                                  what befalls at calls of the store; see `Hooked`
    signals                                a folder for signals between ranks and the test: files that appear
    out                                    the file that outcomes are appended to, one JSON value a line
    drive_after_s, threads                 see below

Several plans in one process are several ranks on threads. `threads`: the plan runs on a thread of the test's own
process; then a rank "dies" by doing nothing more, and is "stopped" by waiting.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import tallymark
import tallymark.worker
from tallymark.errors import StoreError
from tallymark.store.open import open_store

LIMIT_S = 60.0


class Weights(tallymark.Checkpoint, kind="weights"):
    """A framework's own class of checkpoints."""


class Died(BaseException):
    """The end of a rank that is a thread."""


class Hooked:
    """A store at whose calls things befall: {"call", "key" (a regular expression), "do", "when", "times", "name"}.

    `do`: "die", "stop", "fail" (a StoreError; `retryable`), "signal". `when`: "before" or "after" the call.
    """

    def __init__(self, store: Any, rank: _Rank) -> None:
        self._store = store
        self._rank = rank
        self._hooks = [dict(hook) for hook in rank.plan["hooks"]]
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not any(hook["call"] == name for hook in self._hooks):
            return found

        def hooked(*args: Any) -> Any:
            key = str(args[-1] if name == "upload" else args[0])
            self._befall(name, key, "before")
            result = found(*args)
            if name == "list":
                result = iter(list(result))  # "after" means after all of it
            self._befall(name, key, "after")
            return result

        return hooked

    def _befall(self, name: str, key: str, when: str) -> None:
        for hook in self._hooks:
            with self._lock:
                due = hook["call"] == name and hook.get("when", "before") == when and re.search(hook["key"], key)
                if not due or hook.get("times", 1) <= 0:
                    continue
                hook["times"] = hook.get("times", 1) - 1
            if hook["do"] == "fail":
                raise StoreError(f"the test refuses {name} of {key}", key=key, retryable=hook.get("retryable", False))
            self._rank.befall(hook["do"], hook.get("name", "hook"))


class _Rank:
    """The actions of a plan. Each is a dict with `do`, and says what came of it."""

    def __init__(self, plan: dict[str, Any], store: Any = None) -> None:
        self.plan = plan
        self.store = store
        self.signals = Path(plan["signals"])
        self.worker: Any = None
        self.reader: tallymark.Run | None = None
        self.reports: dict[int, Any] = {}
        self.number = plan["join"].get("rank", 0)

    def run(self) -> None:
        url = Path(self.plan["url"]) if self.plan.get("as_path") else self.plan["url"]
        options: dict[str, Any] = {"storage_options": self.plan.get("storage_options")}
        if self.store is not None or self.plan["hooks"]:
            store = self.store or open_store(url, **options)
            options = {"store": Hooked(store, self) if self.plan["hooks"] else store}
        try:
            self.worker = tallymark.join(url, **options, **self.plan["join"])
        except Exception as problem:
            self._say("join", _error(problem))
            return
        base = self.worker.base
        joined = {"attempt": self.worker.attempt, "first_step": self.worker.first_step, "base": base and manifest(base)}
        self._say("join", joined)
        self._meet()
        try:
            with self.worker:
                for action in self.plan["actions"]:
                    self._act(action)
        except _Asked:
            pass
        except Exception as problem:
            self._say("leave", _error(problem))
        else:
            self._say("leave", {})

    def _act(self, action: dict[str, Any]) -> None:
        if action["do"] == "raise":
            raise _Asked("the training code failed")
        try:
            said = getattr(self, "do_" + action["do"])(
                **{name: value for name, value in action.items() if name != "do"}
            )
        except Exception as problem:
            said = _error(problem)
        self._say(action["do"], said or {})

    def _say(self, do: str, said: dict[str, Any]) -> None:
        with open(self.plan["out"], "a") as out:
            out.write(json.dumps({"do": do, **said}) + "\n")

    def _meet(self) -> None:
        """Wait until every rank has joined, so that a slow start is no slow report."""
        (self.signals / f"joined-{self.number}").touch()
        for other in self.plan.get("meet", ()):
            self.do_await(f"joined-{other}")

    # ---- what befalls ----

    def befall(self, what: str, name: str) -> None:
        (self.signals / name).touch()
        if what == "die":
            if not self.plan.get("threads"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.worker is not None:
                self.worker._left = True  # it says no farewell
            raise Died
        if what == "stop":
            if not self.plan.get("threads"):
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                self.do_await(f"{name}.go")

    # ---- actions ----

    def do_report(self, step: int, metrics: dict[str, Any] | None = None, wait: bool = False, **more: Any) -> Any:
        metrics = {"rank": self.number, "step": step} if metrics is None else metrics
        self.reports[step] = self.worker.report(metrics, checkpoint_of(more), step=step)
        return self.do_wait(step) if wait else {}

    def do_wait(self, step: int, timeout_s: float | None = LIMIT_S) -> Any:
        return manifest(self.reports[step].wait(timeout_s))

    def do_latest(self) -> Any:
        if self.reader is None:
            where = {"store": self.store} if self.store else {"storage_options": self.plan["storage_options"]}
            self.reader = tallymark.open(self.plan["url"], **where)
        latest = self.reader.latest()
        return {"latest": latest and manifest(latest)}

    def do_signal(self, name: str) -> None:
        (self.signals / name).touch()

    def do_await(self, name: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not (self.signals / name).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the signal {name} did not come")
            time.sleep(0.005)

    def do_die(self, name: str = "died") -> None:
        self.befall("die", name)

    def do_stop(self, name: str = "stopped") -> None:
        self.befall("stop", name)

    def do_leave(self) -> None:
        self.worker.leave()

    def do_finish(self, status: str = "completed") -> None:
        self.worker.finish(status)

    def do_join_again(self) -> None:
        tallymark.join(self.plan["url"], storage_options=self.plan.get("storage_options"), **self.plan["join"])

    def do_fork(self) -> dict[str, Any]:
        """What a forked child is told when it uses its parent's worker."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of any fork beside threads
            child = os.fork()
        if child == 0:
            try:
                self.worker.report({}, step=99)
                said: dict[str, Any] = {"child": "reported"}
            except BaseException as problem:
                said = {"child": _error(problem)}
            os.write(writer, json.dumps(said).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as stream:
            told: dict[str, Any] = json.loads(stream.read())
        os.waitpid(child, 0)
        return told


class _Asked(Exception):
    """An exception of the training code, as the plan asked for it."""


def checkpoint_of(offer: dict[str, Any]) -> Any:
    """What an action offers: `path`, or `at` (and `files`); with `kind`, `metadata` and `weights` (the class)."""
    if not offer:
        return None
    maker = Weights if offer.get("weights") else tallymark.Checkpoint
    told = {name: offer[name] for name in ("kind", "metadata") if name in offer}
    if "at" in offer:
        return maker.at(offer["at"], files=offer.get("files"), **told)
    return maker.from_directory(offer["path"], **told) if told or offer.get("weights") else offer["path"]


def manifest(found: tallymark.Manifest) -> dict[str, Any]:
    """A manifest, as far as JSON can say it."""
    checkpoint = found.checkpoint
    told = checkpoint and {
        "url": checkpoint.url,
        "ranks": list(checkpoint.ranks),
        "kind": checkpoint.kind,
        "adopted": checkpoint.adopted,
        "class": type(checkpoint).__name__,
    }
    names = ("step", "attempt", "slot", "world_size", "metrics")
    return {
        **{name: getattr(found, name) for name in names},
        "reporting_ranks": list(found.reporting_ranks),
        "checkpoint": told,
    }


def _error(problem: BaseException) -> dict[str, Any]:
    names = ("reason", "step", "attempt", "live_attempt", "rank", "host", "pid", "key", "retryable")
    told = {name: getattr(problem, name) for name in names if hasattr(problem, name)}
    return {
        **told,
        "error": type(problem).__name__,
        "is": [kind.__name__ for kind in type(problem).__mro__],
        "message": str(problem),
        "cause": type(problem.__cause__).__name__ if problem.__cause__ else "",
        "ranks": list(getattr(problem, "ranks", ())),
        "hosts": list(getattr(problem, "hosts", ())),
    }


def run_plan(plan: dict[str, Any], store: Any = None) -> None:
    """Be one rank, to the end of its plan."""
    rank = _Rank(plan, store)
    try:
        rank.run()
    except Died:
        if rank.worker is not None and rank.worker._host is not None:
            rank.worker._host.stop()  # a thread that hosts a driver takes it along


class _Log(logging.Handler):
    """Warnings become outcomes of the first rank in the process."""

    def __init__(self, out: str) -> None:
        super().__init__(logging.WARNING)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        with open(self._out, "a") as out:
            out.write(json.dumps({"do": "log", "level": record.levelname, "message": record.getMessage()}) + "\n")


def main() -> None:
    plans = json.load(sys.stdin)
    first = plans[0]
    logging.getLogger("tallymark").addHandler(_Log(first["out"]))
    if "cwd" in first:
        os.chdir(first["cwd"])
    if "drive_after_s" in first:
        tallymark.worker.DRIVE_AFTER_S = first["drive_after_s"]
    if len(plans) == 1:
        run_plan(first)
        return
    store = open_store(first["url"], storage_options=first["storage_options"])  # one client: it costs more than a rank
    threads = [threading.Thread(target=run_plan, args=(plan, store)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
