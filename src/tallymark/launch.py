"""Who am I: rank, world size and launch id, from the call, `TALLYMARK_*`, or the launcher's environment.

This file alone knows the variables of launchers. It reads the mapping that it is given, never `os.environ`.

`TABLE` below says who is asked, in which order. Arguments and `TALLYMARK_*` are the user's word, and may complete
each other; it silences the launcher. When sources disagree:

| found | decision |
|---|---|
| an argument and its `TALLYMARK_*` variable differ | refused: two words of the user |
| an argument or `TALLYMARK_*` differs from the launcher | the user's word; for that value the launcher is not read |
| half a pair: `RANK` without `WORLD_SIZE`, `rank=` beside a launcher's `WORLD_SIZE` | refused, naming what is missing |
| `RANK` and `SLURM_PROCID` (with it, `WORLD_SIZE` and `SLURM_NTASKS`) differ, no `TORCHELASTIC_RUN_ID` | refused |
| the same, with `TORCHELASTIC_RUN_ID` | torchrun's: what one srun task spawns sees that task's `SLURM_PROCID` |
| `LOCAL_RANK` > `RANK`, or `LOCAL_WORLD_SIZE` > `WORLD_SIZE` | refused: these are node numbers |
| `SLURM_NTASKS`, `SLURM_NPROCS`, `SLURM_STEP_NUM_TASKS` differ | refused |
| `SLURM_PROCID` outside a task of srun (batch script, salloc), or in a heterogeneous job | no identity |
| `TORCHELASTIC_RESTART_COUNT` other than 0 in a task of srun | no launch id: agents count restarts differently |
| torchrun, or `RANK` and `WORLD_SIZE`, outside a task of srun | no launch id: run ids come again |

Rules a change must keep: never guess, never default to rank 0, never take half a pair, and never call something a
launch id that may come again or that two ranks of one launch may see differently. A variable that is set but empty is
malformed, not absent.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, SupportsIndex, TypeVar

from tallymark.errors import IdentityError

MAX_WORLD_SIZE = 1_000_000
_LAUNCH_ID = re.compile(r"[A-Za-z0-9._:/@+=-]{1,200}")
_SLURM_LAST_STEP = 0xFFFFFFF0  # steps above it are Slurm's own (batch, extern, interactive), not started by srun
_SLURM_JOB = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_SLURM_SIZES = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS")
_PAIR_CURE = "pass rank= and world_size= in every process, or set TALLYMARK_RANK and TALLYMARK_WORLD_SIZE there"
_LAUNCH_CURE = (
    "pass launch_id= or set TALLYMARK_LAUNCH_ID: the same on all ranks, never reused, with the restart count in it, "
    'for example launch_id="llama-7b-20240501-restart0"'
)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a process knows of itself when it joins; the `..._from` fields name the source of each value."""

    rank: int
    world_size: int
    launch_id: str
    rank_from: str
    world_size_from: str
    launch_id_from: str


class Source(NamedTuple):
    """A row of the published table: what a source gives, its precedence (1 is asked first), what contradicts it."""

    variables: tuple[str, ...]
    gives: str
    precedence: int
    contradicts: str
    evidence: str


_SAID = "rank, world size, launch id"
_TALLYMARK = ("TALLYMARK_RANK", "TALLYMARK_WORLD_SIZE", "TALLYMARK_LAUNCH_ID")
_TORCH_FOES = (
    "`LOCAL_RANK` > `RANK`; `LOCAL_WORLD_SIZE` > `WORLD_SIZE`; without `TORCHELASTIC_RUN_ID`: "
    "another `SLURM_PROCID`, and beside it another number of tasks"
)
_SIZE_FOES = "one of the three sizes differs; `SLURM_HET_SIZE` other than 1; no step of srun"
_SLURM_FOES = "`TORCHELASTIC_RESTART_COUNT` other than 0; `SLURM_HET_SIZE` other than 1; no step of srun"
TABLE = (
    Source(("rank=", "world_size=", "launch_id="), _SAID, 1, "another value in `TALLYMARK_*`", "run here"),
    Source(_TALLYMARK, _SAID, 2, "another value as argument", "run here"),
    Source(("RANK", "WORLD_SIZE"), "rank, world size", 3, _TORCH_FOES, "fixture-tested"),
    Source(("SLURM_PROCID", *_SLURM_SIZES), "rank, world size", 4, _SIZE_FOES, "fixture-tested"),
    Source(_SLURM_JOB, "launch id `slurm-<job>-<step>-<restarts, or 0>`", 4, _SLURM_FOES, "fixture-tested"),
)

T = TypeVar("T", int, str)


@dataclass(frozen=True, slots=True)
class _Said(Generic[T]):
    """A value, and who said it."""

    value: T
    source: str

    def __str__(self) -> str:
        return f"{self.source}={_show(self.value)}"


def identify(
    *,
    rank: SupportsIndex | None = None,
    world_size: SupportsIndex | None = None,
    launch_id: str | None = None,
    environ: Mapping[str, str],
) -> Identity:
    """Tell who this process is, by the table at the top of this file; pass `os.environ` as `environ`.

    Guaranteed: 0 <= rank < world_size <= 1,000,000, both from one source; the launch id is 1 to 200 characters of
    `A-Za-z0-9._:/@+=-`. Not guaranteed: that no other process claims the same rank; seats find that out.
    Raises IdentityError if a value is missing, malformed or contradicted: the message names the value and its source.
    """
    r, n = _users_pair(rank, world_size, environ) or _launchers_pair(environ) or _slurm_pair(environ)
    if not 1 <= n.value <= MAX_WORLD_SIZE:
        raise IdentityError(f"{n}: a world size is 1 to {MAX_WORLD_SIZE}; give the number of all ranks of the launch")
    if not 0 <= r.value < n.value:
        raise IdentityError(f"{r} is not a rank of {n}: ranks are 0 to world size - 1; {_PAIR_CURE}")
    launch = _users_launch_id(launch_id, environ) or _slurm_launch_id(environ)
    return Identity(r.value, n.value, launch.value, r.source, n.source, launch.source)


def _users_pair(rank: object, world_size: object, environ: Mapping[str, str]) -> tuple[_Said[int], _Said[int]] | None:
    r = _agreed(_integer("argument rank", rank), _number("TALLYMARK_RANK", environ), cure="keep one")
    n = _agreed(_integer("argument world_size", world_size), _number("TALLYMARK_WORLD_SIZE", environ), cure="keep one")
    if r is None and n is None:
        return None
    return _both(r, "rank (argument or TALLYMARK_RANK)", n, "world size (argument or TALLYMARK_WORLD_SIZE)")


def _launchers_pair(environ: Mapping[str, str]) -> tuple[_Said[int], _Said[int]] | None:
    torchrun = "TORCHELASTIC_RUN_ID" in environ
    if not torchrun and "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    r, n = _both(_number("RANK", environ), "RANK", _number("WORLD_SIZE", environ), "WORLD_SIZE")
    for whole, part in ((r, "LOCAL_RANK"), (n, "LOCAL_WORLD_SIZE")):
        local = _number(part, environ)
        if local is not None and local.value > whole.value:
            raise IdentityError(f"{local} is above {whole}: RANK and WORLD_SIZE look like node numbers; {_PAIR_CURE}")
    if not torchrun and "SLURM_PROCID" in environ:
        _agreed(r, _number("SLURM_PROCID", environ), cure=_PAIR_CURE)
        _agreed(n, *(_number(name, environ) for name in _SLURM_SIZES), cure=_PAIR_CURE)
    return r, n


def _slurm_pair(environ: Mapping[str, str]) -> tuple[_Said[int], _Said[int]]:
    why_not = _not_a_task(environ)
    if why_not:
        raise IdentityError(f"no rank and no world size are known ({why_not}): {_PAIR_CURE}")
    n = _agreed(*(_number(name, environ) for name in _SLURM_SIZES), cure=_PAIR_CURE)
    return _both(_number("SLURM_PROCID", environ), "SLURM_PROCID", n, "SLURM_NTASKS")


def _users_launch_id(launch_id: object, environ: Mapping[str, str]) -> _Said[str] | None:
    said = (("argument launch_id", launch_id), ("TALLYMARK_LAUNCH_ID", environ.get("TALLYMARK_LAUNCH_ID")))
    for source, value in said:
        if value is not None and not (isinstance(value, str) and _LAUNCH_ID.fullmatch(value)):
            raise IdentityError(
                f"{source}={_show(value)}: a launch id is a string of 1 to 200 characters of A-Za-z0-9._:/@+=-"
            )
    return _agreed(*(_Said(value, source) for source, value in said if isinstance(value, str)), cure="keep one")


def _slurm_launch_id(environ: Mapping[str, str]) -> _Said[str]:
    """The launch id of an srun task; else the error that says why there is none, and what to pass."""
    why_not = _not_a_task(environ)
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts != "0":
        why_not = f"TORCHELASTIC_RESTART_COUNT={_show(restarts)} is not the same for all agents of torchrun"
    elif why_not and "TORCHELASTIC_RUN_ID" in environ:
        run_id = _show(environ["TORCHELASTIC_RUN_ID"])
        why_not = f"TORCHELASTIC_RUN_ID={run_id} is no launch id: other launches and restarts have the same"
    if why_not:
        raise IdentityError(f"no launch id is known ({why_not}): {_LAUNCH_CURE}")
    job, step = _number("SLURM_JOB_ID", environ), _number("SLURM_STEP_ID", environ)
    requeued = _number("SLURM_RESTART_COUNT", environ) or _Said(0, "")
    assert job is not None  # or _not_a_task would have said so
    assert step is not None
    return _Said(f"slurm-{job.value}-{step.value}-{requeued.value}", ", ".join(_SLURM_JOB))


def _not_a_task(environ: Mapping[str, str]) -> str:
    """Why Slurm's variables do not speak of this process; "" if srun started it as a task.

    In a batch script they speak of the script (SLURM_PROCID is 0), under salloc of the allocation, and the components
    of a heterogeneous job have job ids of their own.
    """
    if "SLURM_JOB_ID" not in environ and "SLURM_PROCID" not in environ:
        return "neither arguments nor TALLYMARK_* nor a launcher's variables say"
    missing = [name for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if name not in environ]
    if missing:
        process = f"SLURM_PROCID={_show(environ['SLURM_PROCID'])} but " if "SLURM_PROCID" in environ else ""
        return f"{process}{' and '.join(missing)} not set: this is no task of srun, start the ranks by srun"
    step, components = _number("SLURM_STEP_ID", environ), _number("SLURM_HET_SIZE", environ)
    if step is not None and step.value > _SLURM_LAST_STEP:
        return f"{step} is a batch or interactive step: start the ranks by srun"
    if components is not None and components.value != 1:
        return f"{components}: a heterogeneous job has one job id for each component"
    return ""


def _both(r: _Said[int] | None, rank_name: str, n: _Said[int] | None, size_name: str) -> tuple[_Said[int], _Said[int]]:
    if r is not None and n is not None:
        return r, n
    missing = " and ".join(name for name, said in ((rank_name, r), (size_name, n)) if said is None)
    beside = f" beside {r or n}" if r or n else ""
    raise IdentityError(f"{missing} not set{beside}: both must come from one source; {_PAIR_CURE}")


def _agreed(*said: _Said[T] | None, cure: str) -> _Said[T] | None:
    """The first of those that spoke; refused unless all that spoke say the same."""
    spoke = [one for one in said if one is not None]
    for other in spoke[1:]:
        if other.value != spoke[0].value:
            raise IdentityError(f"{spoke[0]} and {other} contradict each other: {cure}")
    return spoke[0] if spoke else None


def _number(name: str, environ: Mapping[str, str]) -> _Said[int] | None:
    text = environ.get(name)
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,20}", text):
        raise IdentityError(f"{name}={_show(text)} is not a plain decimal number such as 3: correct or unset it")
    return _Said(int(text), name)


def _integer(source: str, value: object) -> _Said[int] | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError("a bool is no count")
        return _Said(operator.index(value), source)  # type: ignore[arg-type]
    except TypeError as error:
        kind = type(value).__name__
        raise IdentityError(f"{source}={_show(value)} is a {kind}: pass an integer, for example int(...)") from error


def _show(value: object) -> str:
    """A value for a message, cut to some 120 characters. Python refuses to print a huge int; this does not."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"<an integer of {value.bit_length()} bits>"
    text = repr(value)
    return (
        text
        if len(text) <= 120
        else f"{text[:100]}... ({len(value) if isinstance(value, str) else len(text)} characters)"
    )
