"""Joining: from a URL and the launcher's environment to a worker in its seat.

Rules a change must keep:
- A rank is never guessed.
- A seat is taken by putting it first and looking round second: of two that claim one rank, at least one sees the other.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Literal

from tallymark import launch, layout, opening, records
from tallymark.adopted import opener
from tallymark.checkpoint import Manifest
from tallymark.driver import Driver
from tallymark.errors import InvalidInput, RankTaken, TallymarkError
from tallymark.history import AttemptFact
from tallymark.host import Host
from tallymark.journal import new_nonce, wall_time
from tallymark.layout import MemberName
from tallymark.offer import Place
from tallymark.opening import Wish
from tallymark.records import Commit
from tallymark.register import Patience, retrying
from tallymark.store.open import open_store
from tallymark.store.port import RunStore
from tallymark.version import __version__
from tallymark.worker import Worker

NONCE_DIGITS = 16
MAX_SECONDS = 10**9


def join(
    url: str | os.PathLike[str] | None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    launch_id: str | None = None,
    resume: Literal["auto", "must", "never"] | int = "auto",
    host_driver: bool | None = None,
    barrier_timeout_s: float = 1800.0,
    on_error: Literal["raise", "warn"] = "raise",
    storage_options: Mapping[str, Any] | None = None,
    store: Any = None,
    join_timeout_s: float = 600.0,
    store_timeout_s: float = 120.0,
) -> Worker:
    """Join the run at `url` as one rank of a launch, and take its seat.

    Every rank of the job calls it once. Rank 0 opens the attempt (first committing what the last attempt left complete)
    and, unless `host_driver=False`, drives the run on a thread; the others wait up to `join_timeout_s` for it.

    `rank`, `world_size`, `launch_id`: see `docs/reference/identity.md` for where they come from if not given; never
    guessed. `resume`: "auto" from the newest checkpoint of the lineage, if there is one; "must", and refuse if there
    is none; "never"; or a step, to roll back. Any step at which at least one rank saved can become the base: contribute
    only sets of ranks that you can resume from. `barrier_timeout_s`: how long a step may go without progress before it
    is aborted. `on_error="warn"`: a shard that cannot be saved is logged instead of raised. `store_timeout_s`: how long
    one request is retried. All ranks must agree on `resume`, `world_size` and `barrier_timeout_s`.

    Raises InvalidInput (IdentityError), RankTaken, JoinTimeout, Superseded, StoreError, CommitUnknown, RecordError
    (JournalCorrupt).
    """
    identity = launch.identify(rank=rank, world_size=world_size, launch_id=launch_id, environ=os.environ)
    wish = Wish(identity, _check_resume(resume), _check_seconds("barrier_timeout_s", barrier_timeout_s))
    _check_seconds("join_timeout_s", join_timeout_s)
    if host_driver not in (None, True, False):
        raise InvalidInput(f"host_driver={host_driver!r}: say True, False, or None for rank 0 alone")
    if on_error not in ("raise", "warn"):
        raise InvalidInput(f"on_error={on_error!r}: say 'raise' or 'warn'")
    patience = Patience(timeout_s=_check_seconds("store_timeout_s", store_timeout_s))
    place = Place(open_store(url, storage_options=storage_options, store=store), opener(storage_options), patience)
    driver = Driver.over(place.store, place.open_data, patience)
    if identity.rank == 0:
        attempt = opening.open_attempt(driver, wish)
    else:
        attempt = opening.find_attempt(driver, wish, timeout_s=join_timeout_s, patience=patience)
    nonce = take_seat(place.store, attempt, identity.rank, patience)
    base = _base(driver, attempt, place)
    hosts = identity.rank == 0 if host_driver is None else host_driver  # begun last: what fails leaves no thread behind
    return Worker(
        place=place,
        driver=driver,
        host=Host(Driver.over(place.store, place.open_data, patience)) if hosts else None,
        rank=identity.rank,
        attempt=attempt,
        nonce=nonce,
        base=base,
        on_error=on_error,
    )


def take_seat(store: RunStore, attempt: AttemptFact, rank: int, patience: Patience) -> str:
    """Claim the rank; the seat's nonce. Raises RankTaken, with the host and pid of the one who holds it."""
    nonce = new_nonce()[:NONCE_DIGITS]
    seat = records.Seat(
        attempt=attempt.number,
        rank=rank,
        nonce=nonce,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        wall_time=wall_time(),
    )
    body = records.canonical(seat)
    retrying(lambda: store.put(layout.seat_key(attempt.number, rank, nonce), body), patience)
    patience.sleep(store.visibility_delay_s)
    prefix = layout.members_prefix(attempt.number, rank)
    for key, _ in retrying(lambda: list(store.list(prefix)), patience):
        member = layout.parse_member(key)
        if member is not None and member.rank == rank and member.nonce != nonce:
            _refuse(store, attempt, rank, member, patience)
    return nonce


def _refuse(store: RunStore, attempt: AttemptFact, rank: int, member: MemberName, patience: Patience) -> None:
    key = layout.seat_key(attempt.number, rank, member.nonce)
    body = retrying(lambda: store.read(key), patience)
    left = retrying(lambda: store.read(layout.farewell_key(attempt.number, rank, member.nonce)), patience) is not None
    holder = records.decode(body, records.Seat, f"the seat of rank {rank}") if body else None
    host, pid = (holder.host, holder.pid) if holder else ("an unknown host", 0)
    ours = host == socket.gethostname() and pid == os.getpid()
    raise RankTaken(
        f"rank {rank} of attempt {attempt.number} (launch {attempt.launch_id!r}) is taken by process {pid} on {host}"
        + (": this process has joined already. " if ours else ", which has left. " if left else ". ")
        + "If that process is gone, launch again with a launch id that was never used; if it lives, two processes "
        "think that they are this rank, and both may be refused: see where they take it from",
        rank=rank,
        host=host,
        pid=pid,
    )


def _base(driver: Driver, attempt: AttemptFact, place: Place) -> Manifest | None:
    if attempt.base is None:
        return None
    if attempt.base.run_id is not None:
        raise TallymarkError(
            f"attempt {attempt.number} starts from a commit of another run, {attempt.base.run_url}: this version reads "
            "bases in the run itself only"
        )
    entry = driver.journal.read(attempt.base.slot)
    if not isinstance(entry, Commit):
        raise TallymarkError(f"slot {attempt.base.slot}, the base of attempt {attempt.number}, is no commit")
    return Manifest.of(entry, place.store, place.open_data, place.patience)


def _check_resume(resume: object) -> str | int:
    if not hasattr(type(resume), "__index__") or isinstance(resume, bool):
        if isinstance(resume, str) and resume in ("auto", "must", "never"):
            return resume
        raise InvalidInput(f"resume={resume!r}: say 'auto', 'must', 'never' or a step (an integer)")
    return layout.check_step(resume)


def _check_seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_SECONDS:
        raise InvalidInput(f"{name}={value!r}: a positive number of seconds is wanted")
    return float(value)
