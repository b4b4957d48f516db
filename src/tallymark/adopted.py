"""Adopted data: a checkpoint that lies elsewhere and is only reported by its URL.

We look, and never write or delete there: promises 1 and 3 cannot cover what others may change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tallymark import layout, transfer
from tallymark.errors import InvalidInput
from tallymark.records import FileFact
from tallymark.register import Patience, retrying
from tallymark.store.open import open_store
from tallymark.store.port import RunStore


def opener(storage_options: Mapping[str, Any] | None) -> Callable[[str], RunStore]:
    """Open the store of an adopted URL with the run's own options, where they apply. Each URL is opened once."""
    opened: dict[str, RunStore] = {}

    def open_data(url: str) -> RunStore:
        if url not in opened:
            remote = "://" in url and not url.startswith(("file://", "memory://"))
            opened[url] = open_store(url, storage_options=storage_options if remote else None)
        return opened[url]

    return open_data


def claim(
    url: str, chosen: tuple[str, ...] | None, run: RunStore, open_data: Callable[[str], RunStore], patience: Patience
) -> tuple[str, tuple[FileFact, ...]]:
    """The recorded path, and the files that a rank vouches for: those chosen, or all that lie there.

    Raises InvalidInput if the place lies in or above the run, FileNotFoundError if a file or all files are absent.
    """
    store = open_data(url)
    ours, theirs = _comparable(run), _comparable(store)
    if ours.startswith(theirs) or theirs.startswith(ours):
        raise InvalidInput(f"{url!r} lies in or above the run {run.url!r}: adopt only data that lie outside it")
    if chosen is None:
        found = retrying(lambda: [(key, size) for key, size in store.list("") if layout.is_data(key)], patience)
        if not found:
            raise FileNotFoundError(f"there are no files under {url!r} (name a folder, not a file)")
    else:
        sizes = [(path, retrying(partial(store.size, path), patience)) for path in sorted(set(chosen))]
        absent = [path for path, size in sizes if size is None]
        if absent or not sizes:
            raise FileNotFoundError(f"under {url!r} there is no {', '.join(map(repr, absent)) or 'file chosen'}")
        found = [(path, size) for path, size in sizes if size is not None]
    for path, _ in found:
        layout.check_path(path)
    return store.url, tuple(FileFact(path=path, size=size, digest=None) for path, size in found)


def _comparable(store: RunStore) -> str:
    """A place in a form that can be compared by prefix: links in local paths resolved, one slash at the end."""
    here = transfer.local_folder(store, "")
    place = os.path.realpath(here) if here is not None else store.url
    return place.rstrip("/") + "/"
