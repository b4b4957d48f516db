"""Places to keep a run, and fleets of ranks that train there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.behaviours.fleet import Fleet, Place
from tests.proxy import FaultProxy, fault_proxy
from tests.servers import S3Server, ministack_server, moto_server

BUCKET = "my.dotted.bkt"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def strict_s3() -> Iterator[S3Server]:
    """A server that handles one request at a time: where two clients race, it keeps its word."""
    with ministack_server() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def lax_s3() -> Iterator[S3Server]:
    """A server that checks and then writes: only where nobody races."""
    with moto_server() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def _proxy(strict_s3: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(strict_s3.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: FaultProxy) -> Iterator[FaultProxy]:
    """A proxy in front of the strict server, which does as it is told; at first it only passes on."""
    _proxy.reset()
    yield _proxy
    _proxy.reset()


@pytest.fixture
def s3_place(strict_s3: S3Server) -> Place:
    return Place("s3", f"s3://{BUCKET}/run-{next(_numbers)}", strict_s3.storage_options)


@pytest.fixture
def local_place(tmp_path: Path) -> Place:
    return Place("local", str(tmp_path / "run"))


@pytest.fixture
def proxied_place(s3_place: Place, proxy: FaultProxy) -> Place:
    """The same run as `s3_place`, by way of the proxy."""
    assert s3_place.storage_options is not None
    return Place("s3", s3_place.url, {**s3_place.storage_options, "endpoint_url": proxy.endpoint_url})


def _place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind == "memory":
        return Place("memory", f"memory://place-{next(_numbers)}")
    if kind == "lax-s3":
        server: S3Server = request.getfixturevalue("lax_s3")
        return Place("s3", f"s3://{BUCKET}/run-{next(_numbers)}", server.storage_options)
    found: Place = request.getfixturevalue({"local": "local_place", "s3": "s3_place"}[kind])
    return found


@pytest.fixture(params=("memory", "local", "s3"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A root of its own on every kind of store. On memory ranks are threads, elsewhere processes."""
    return _place(request.param, request, tmp_path)


@pytest.fixture(params=("memory", "local", "s3", "lax-s3"))
def every_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Also a second S3 server."""
    return _place(request.param, request, tmp_path)


@pytest.fixture(params=("local", "s3"))
def shared_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A root that several processes share."""
    return _place(request.param, request, tmp_path)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[[Place], Fleet]]:
    """Make fleets; whatever of them still runs at the end of the test is ended."""
    made: list[Fleet] = []

    def make(place: Place) -> Fleet:
        made.append(Fleet(place, tmp_path / f"fleet-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.end()
