"""Real S3 servers for tests, each a process of its own on a free port of 127.0.0.1.

A server that does not start fails the test that asked for it: nothing is skipped. Buckets are made here, by boto3,
never by the library under test.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

KEY = "AKIATALLYMARKTESTKEY"
SECRET = "a-secret-that-nobody-may-ever-see"
START_LIMIT_S = 60.0


@dataclass(frozen=True)
class S3Server:
    """A running server. `storage_options` are in fsspec's dialect."""

    endpoint_url: str
    pid: int
    storage_options: dict[str, Any] = field(repr=False)

    def client(self) -> Any:
        """A boto3 client, to look behind the back of the client under test. The caller closes it."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )

    def make_bucket(self, name: str) -> str:
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name


@contextlib.contextmanager
def moto_server() -> Iterator[S3Server]:
    """Good for the shape of the interface. It checks and then writes: no judge of races."""
    port = _free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, "/moto-api/", {}) as server:
        yield server


@contextlib.contextmanager
def ministack_server() -> Iterator[S3Server]:
    """Handles one request at a time: a good judge of exclusive create."""
    port = _free_port()
    command = [sys.executable, "-W", "ignore", "-m", "ministack"]
    environ = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    with _running(command, port, "/_ministack/health", environ) as server:
        yield server


@contextlib.contextmanager
def _running(command: Sequence[str], port: int, ready: str, environ: dict[str, str]) -> Iterator[S3Server]:
    endpoint = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="tallymark-server-") as folder:
        log = Path(folder) / "log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env={**os.environ, **environ}
            )
        try:
            _wait_until_ready(process, endpoint + ready, log)
            yield S3Server(endpoint, process.pid, _options(endpoint))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Request(NamedTuple):
    """What the stub was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """What the stub answers; a status of 0 closes the connection instead."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012


@dataclass
class StubServer:
    """Answers what the test says: for codes that no real server here ever gives."""

    endpoint_url: str
    storage_options: dict[str, Any] = field(repr=False)
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request], Reply] = lambda request: Reply(500)


@contextlib.contextmanager
def stub_server() -> Iterator[StubServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, dict(self.headers.items()), body)
            stub.requests.append(request)
            reply = stub.answer(request)
            if not reply.status:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)
            if int(reply.headers.get("Content-Length", len(reply.body))) != len(reply.body):
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    stub = StubServer(endpoint, _options(endpoint))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _options(endpoint: str) -> dict[str, Any]:
    return {
        "key": KEY,
        "secret": SECRET,
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server did not answer at {url}:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
