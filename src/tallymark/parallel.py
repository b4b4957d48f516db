"""Several calls side by side, on threads that never keep the interpreter alive.

`concurrent.futures` joins its threads at exit, so a job that ends in the middle of a request would hang until the
request ends. These are daemon threads, started per call: a commit needs five of them, which costs far less than one
request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

T = TypeVar("T")
A = TypeVar("A")


def gather(calls: Iterable[Callable[[], T]], *, limit: int = 32) -> list[T]:
    """The results in the order of the calls; at most `limit` run at once.

    All calls are waited for. If some fail, the first failure in the order of the calls is raised, and calls that were
    not begun by then are not begun. A single call runs in the caller's thread.
    """
    todo = list(calls)
    if len(todo) <= 1:
        return [call() for call in todo]
    results: dict[int, T] = {}
    failures: dict[int, BaseException] = {}
    queue: Iterator[tuple[int, Callable[[], T]]] = iter(enumerate(todo))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index, call = next(queue, (-1, None))
            if call is None or failures:
                return
            try:
                results[index] = call()
            except BaseException as problem:  # noqa: BLE001  raised in the caller's thread
                failures[index] = problem

    threads = [threading.Thread(target=work, daemon=True, name="tallymark-call") for _ in range(min(limit, len(todo)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[min(failures)]
    return [results[index] for index in range(len(todo))]


def each(call: Callable[[A], T], items: Iterable[A], *, limit: int = 32) -> list[T]:
    """`call(item)` for every item, side by side, like `gather`."""
    return gather([partial(call, item) for item in items], limit=limit)
