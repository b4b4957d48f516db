"""What runs in the processes of a race. Importable by a spawned child."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from typing import Any

from tallymark.store.open import open_store


def body_of(who: int) -> bytes:
    return f"{who:04d}".encode() * 1000


def create_in_rounds(
    url: str, options: Mapping[str, Any] | None, who: int, rounds: int, together: Barrier, results: Queue[Any]
) -> None:
    store = open_store(url, storage_options=options)
    store.read("warm/up")
    won = []
    for number in range(rounds):
        together.wait(60)
        if store.create(f"race/{number:04d}", body_of(who)):
            won.append(number)
    results.put((who, won))


def write_again_and_again(url: str, who: int, started: Barrier, stop: Event) -> None:
    store = open_store(url)
    started.wait(60)
    number = 0
    while not stop.is_set():
        store.put("hint.json", body_of(who))
        store.create(f"slots/{number:06d}", body_of(who))
        number += 1
