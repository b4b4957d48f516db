"""A committed checkpoint's data: where they lie, what they are, and whether they still are that."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property

from tallymark import inventory
from tallymark.inventory import Inventory
from tallymark.records import Commit, InventoryFile
from tallymark.register import Patience, retrying
from tallymark.store.port import RunStore

_BLOCK = 1 << 20


class Contents:
    """A committed checkpoint's data: where they lie and what they are. The inventory is read when first asked for."""

    def __init__(
        self, commit: Commit, run: RunStore, data: Callable[[str], RunStore], patience: Patience | None = None
    ) -> None:
        assert commit.checkpoint is not None
        self.commit = commit
        self.saved = commit.checkpoint
        self.patience = patience or Patience()
        self._run = run
        self._data = data

    @cached_property
    def store(self) -> RunStore:
        """The store of the data: the run's, or that of the adopted URL."""
        return self._data(self.saved.path) if self.saved.adopted else self._run

    @property
    def prefix(self) -> str:
        """What stands before a file's path in a key of `store`."""
        return "" if self.saved.adopted else self.saved.path

    @property
    def url(self) -> str:
        """Where the data lie."""
        return self.saved.path if self.saved.adopted else f"{self._run.url.rstrip('/')}/{self.saved.path.rstrip('/')}"

    @cached_property
    def inventory(self) -> Inventory:
        """The files and the words of the contributing ranks."""
        return inventory.load(self._run, self.commit, self.patience)

    def problem(self, file: InventoryFile, level: str) -> str:
        """What is wrong with a file; "" if nothing is."""
        key = self.prefix + file.path
        size = retrying(lambda: self.store.size(key), self.patience)
        if size is None:
            return "is missing"
        if size != file.size:
            return f"has {size} bytes instead of {file.size}"
        if level == "size" or file.digest is None:
            return ""
        digest = hashlib.sha256()
        with self.store.open(key) as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
        return "" if digest.hexdigest() == file.digest else "differs from what was saved"
