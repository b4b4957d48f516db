"""The places of these tests: a local folder, and a bucket on a server that handles one request at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.endurance.places import BUCKET, Place
from tests.servers import S3Server, ministack_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def ministack() -> Iterator[S3Server]:
    with ministack_server() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place("local", str(tmp_path / "runs"))


@pytest.fixture
def s3(ministack: S3Server, tmp_path: Path) -> Place:
    return Place("s3", f"s3://{BUCKET}/{tmp_path.name}-{next(_numbers)}", ministack, ministack.storage_options)


@pytest.fixture(params=("local", "s3"))
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found
