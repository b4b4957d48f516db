"""Places to keep a run: every kind of store, each test with a root of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.servers import S3Server, ministack_server, moto_server

from tallymark.store.open import open_store
from tallymark.store.port import RunStore

KINDS = ("memory", "local", "moto", "ministack")
BUCKET = "my.dotted.bkt"
_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """One root; `open()` gives one more client of it, `at(name)` a place below."""

    kind: str
    url: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def open(self) -> RunStore:
        return open_store(self.url, storage_options=self.storage_options)

    def at(self, name: str) -> Place:
        return Place(self.kind, f"{self.url}/{name}", self.storage_options)


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def ministack() -> Iterator[S3Server]:
    with ministack_server() as server:
        server.make_bucket(BUCKET)
        yield server


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind == "local":
        return Place(kind, str(tmp_path / "run"))
    if kind == "memory":
        return Place(kind, f"memory://test-{next(_numbers)}")
    server: S3Server = request.getfixturevalue(kind)
    return Place(kind, f"s3://{BUCKET}/run-{next(_numbers)}", server.storage_options)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture(params=("local", "ministack"))
def judge(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Places that several processes share and that keep their word under a race."""
    return place_of(request.param, request, tmp_path)
