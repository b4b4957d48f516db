"""The demo's judge and teller: what the journal and the files say, held against what must be so."""

from __future__ import annotations

import signal
import socket
from typing import Any

import tallymark
from tallymark.cli import output
from tallymark.cli.demo_model import MEMBERS, Member, state_file
from tallymark.cli.demo_plan import BASE_STEP, EVERY, KILLED_RANK, KILLED_STEP, RANKS, SAVERS, STEPS, Outcome
from tallymark.records import Abort, Attempt, Commit, Finish, from_plain, from_ranges, to_ranges

BAR_WIDTH = 40


def judge(outcome: Outcome, run: tallymark.Run) -> None:
    """Read the run as any reader would, and note every expectation."""
    entries = run.entries()
    for entry in entries:
        match entry:
            case Attempt():
                base = entry.base.step if entry.base else None
                outcome.attempts.append({"attempt": entry.attempt, "world_size": entry.world_size, "base_step": base})
            case Commit() | Abort():
                outcome.steps.append(_step(entry))
    aborts = [entry for entry in entries if isinstance(entry, Abort)]
    _judge_abort(outcome, aborts)
    _judge_attempts(outcome)
    curve, final = uninterrupted()
    _judge_curve(outcome, curve)
    _judge_final(outcome, run, final)
    _judge_files(outcome, run)
    outcome.expect("the run is finished", isinstance(entries[-1], Finish), f"its last entry is {entries[-1]}")


def _step(entry: Commit | Abort) -> dict[str, Any]:
    if isinstance(entry, Abort):
        names = ", ".join(f"rank {one.rank} on {one.host or 'an unknown host'}" for one in entry.culprits)
        why = f"{entry.reason}: {names}"
        return _row(entry, "aborted", list(from_ranges(entry.ranks)), 0, 0, why) | {"reason": entry.reason}
    saved = entry.checkpoint
    ranks = list(from_ranges(saved.ranks)) if saved else []
    metrics = from_plain(entry.metrics)
    row = _row(entry, "committed", ranks, saved.files if saved else 0, saved.bytes if saved else 0, "")
    return row | {"loss": metrics["loss"]}


def _row(entry: Commit | Abort, outcome: str, ranks: list[int], files: int, size: int, why: str) -> dict[str, Any]:
    return {
        "attempt": entry.attempt,
        "step": entry.step,
        "slot": entry.slot,
        "outcome": outcome,
        "ranks": ranks,
        "files": files,
        "bytes": size,
        "loss": None,
        "reason": None,
        "why": why,
    }


def uninterrupted() -> tuple[dict[int, float], dict[str, bytes]]:
    """The same training in this one process, never stopped: member 0's loss by step, and the files at its end."""
    members = [Member.new(number) for number in range(MEMBERS)]
    curve: dict[int, float] = {}
    for step in range(1, STEPS + 1):
        for member in members:
            member.train()
        if step % EVERY == 0:
            curve[step] = members[0].loss()
    final = {state_file(member.number): member.state() for member in members}
    return curve, final


# ------------------------------------------------------------------------------------- what must be so


def _judge_abort(outcome: Outcome, aborts: list[Abort]) -> None:
    code = outcome.launches[1].codes[KILLED_RANK]
    killed = code == -signal.SIGKILL and bool(outcome.killed)
    outcome.expect(
        f"rank {KILLED_RANK} was killed with SIGKILL after its upload of step {KILLED_STEP} began, before its marker",
        killed,
        f"it ended with {code}, and told {outcome.killed}",
    )
    found = [(one.step, one.reason, one.ranks, [(who.rank, who.host) for who in one.culprits]) for one in aborts]
    wanted = [(KILLED_STEP, "timeout", ((KILLED_RANK,) * 2,), [(KILLED_RANK, socket.gethostname())])]
    outcome.expect(
        f"only step {KILLED_STEP} was aborted, naming rank {KILLED_RANK}, its host, and nobody else",
        found == wanted,
        f"aborted were {found}",
    )
    launch = outcome.launches[1]
    told = {
        rank: [(event["reason"], event["ranks"]) for event in launch.told(rank, "aborted")]
        for rank in range(launch.ranks)
        if rank != KILLED_RANK
    }
    outcome.expect(
        "every survivor was told the same",
        all(words == [("timeout", [KILLED_RANK])] for words in told.values()),
        f"they were told {told}",
    )


def _judge_attempts(outcome: Outcome) -> None:
    wanted = [
        {"attempt": 1, "world_size": RANKS[1], "base_step": None},
        {"attempt": 2, "world_size": RANKS[2], "base_step": BASE_STEP},
    ]
    outcome.expect(
        f"attempt 2 has {RANKS[2]} ranks and starts from step {BASE_STEP}, the last commit",
        outcome.attempts == wanted,
        f"the attempts are {outcome.attempts}",
    )
    found = [(row["attempt"], row["step"], row["ranks"]) for row in outcome.steps if row["outcome"] == "committed"]
    plan = [
        (number, step, ranks)
        for number, steps in SAVERS.items()
        for step, ranks in steps.items()
        if (number, step) != (1, KILLED_STEP)
    ]
    outcome.expect("all other steps are committed, each with the ranks that saved", found == plan, f"found {found}")
    codes = outcome.launches[2].codes
    outcome.expect("all ranks of launch 2 ended well", not any(codes.values()), f"they ended with {codes}")


def _judge_curve(outcome: Outcome, curve: dict[int, float]) -> None:
    for row in outcome.steps:
        if row["outcome"] == "committed":
            once = curve[row["step"]]
            point = {"step": row["step"], "attempt": row["attempt"], "loss": row["loss"], "uninterrupted": once}
            outcome.curve.append(point)
    joined = outcome.launches[2].told(0, "joined")
    at_resume = joined[0]["loss"] if joined else None
    outcome.expect(
        "the loss at the resume, and at every step, is exactly that of a training that was never interrupted",
        at_resume == curve[BASE_STEP] and all(point["loss"] == point["uninterrupted"] for point in outcome.curve),
        f"at the resume it is {at_resume}, not {curve[BASE_STEP]}; then {outcome.curve}",
    )
    losses = [point["loss"] for point in outcome.curve]
    outcome.expect("the loss falls", losses == sorted(losses, reverse=True), f"it is {losses}")


def _judge_final(outcome: Outcome, run: tallymark.Run, final: dict[str, bytes]) -> None:
    latest = run.latest()
    assert latest is not None and latest.checkpoint is not None
    found = {}
    for file in latest.checkpoint.files():
        with latest.checkpoint.open(file.path) as stream:
            found[file.path] = stream.read()
    differ = sorted(path for path in found.keys() | final.keys() if found.get(path) != final.get(path))
    outcome.expect(
        f"the last checkpoint, step {STEPS}, is bit for bit that of a training that was never interrupted",
        latest.step == STEPS and not differ,
        f"it is of step {latest.step}, and these differ: {differ}",
    )


def _judge_files(outcome: Outcome, run: tallymark.Run) -> None:
    problems = []
    for manifest in run.history():
        if manifest.checkpoint is None:
            continue
        try:
            outcome.verified["files"] += manifest.checkpoint.verify()
        except tallymark.CheckpointDamaged as problem:
            problems.append(str(problem))
        outcome.verified["checkpoints"] += 1
        outcome.verified["bytes"] += sum(file.size for file in manifest.checkpoint.files())
    wanted = sum(1 for row in outcome.steps if row["outcome"] == "committed" and row["ranks"])
    whole = not problems and outcome.verified["checkpoints"] == wanted
    outcome.expect("every file of every committed step has the digest that was committed", whole, "; ".join(problems))


# ------------------------------------------------------------------------------------- telling


def document(outcome: Outcome) -> dict[str, Any]:
    """The outcome as the JSON document of `tallymark demo --json`."""
    return {
        "ok": outcome.ok,
        "url": outcome.url,
        "kept": outcome.kept,
        "seconds": round(outcome.seconds, 3),
        "killed": outcome.killed,
        "attempts": outcome.attempts,
        "steps": outcome.steps,
        "curve": outcome.curve,
        "verified": outcome.verified,
        "expectations": [{"what": one.what, "ok": one.ok, "detail": one.detail} for one in outcome.expectations],
    }


def tell(outcome: Outcome) -> None:
    """The outcome for a person."""
    rows = [
        [
            row["attempt"],
            row["step"],
            row["outcome"],
            output.show_ranks(to_ranges(row["ranks"])) if row["outcome"] == "committed" else "-",
            row["files"] or "-",
            output.show_bytes(row["bytes"]) if row["bytes"] else "-",
            row["why"] or ("" if row["ranks"] else "metrics only"),
        ]
        for row in outcome.steps
    ]
    if rows:
        print("\nThe journal says:")
        output.print_table(["attempt", "step", "fate", "saved by ranks", "files", "bytes", ""], rows)
    if outcome.curve:
        _plot(outcome)
    print("\nChecked:")
    for one in outcome.expectations:
        print(f"  {'ok  ' if one.ok else 'FAIL'} {output.clean(one.what)}")
        if not one.ok:
            print("       " + output.clean(one.detail)[:2000])
    verified = outcome.verified
    print(
        f"  {verified['files']} files of {verified['checkpoints']} checkpoints verified by digest, "
        f"{output.show_bytes(verified['bytes'])}"
    )
    left = f"the run is kept: tallymark ls {outcome.url}" if outcome.kept else "the folder is removed (--keep keeps it)"
    verdict = "All as promised" if outcome.ok else "NOT as it should be"
    print(f"\n{verdict}, in {outcome.seconds:.1f} s; {left}")


def _plot(outcome: Outcome) -> None:
    print("\nLoss of model 0 on rows held out (rank 0's metric), across the resume:")
    top = max(point["loss"] for point in outcome.curve)
    before = 1
    for point in outcome.curve:
        if point["attempt"] != before:
            print(f"         {'-' * 8} rank {KILLED_RANK} killed; resumed from step {BASE_STEP} with {RANKS[2]} ranks")
            before = point["attempt"]
        print(f"  {point['step']:>4}  {point['loss']:.4f} {'#' * round(BAR_WIDTH * point['loss'] / top)}")
