"""A proxy in front of an S3 server that does, at chosen requests, what networks and servers do.

Requests are passed on byte for byte, the `Host` header too, which signatures cover. A fault is matched by method and
by a regular expression on the request's target (path and query, still percent-encoded); the first that matches and is
not used up decides.
"""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

WAIT_S = 60.0
CODES = {403: "AccessDenied", 409: "ConditionalRequestConflict", 500: "InternalError", 503: "SlowDown"}


class Seen(NamedTuple):
    """A request that came, and what became of it: the status that was answered, 0 if none was."""

    method: str
    target: str
    body: bytes
    forwarded: bool
    status: int


@dataclass
class Fault:
    """What befalls requests that match, `times` times (None: for ever).

    `answer`: a status given without passing the request on. `reset`: the connection breaks before it is passed on.
    `drop_reply`: it is passed on, and the connection breaks instead of a reply. `truncate`: of the reply's body only so
    many bytes come. `change`: the reply's body is changed. `hold`: it is passed on only when `release()` is called;
    with `cut`, the connection breaks at once, and the request lands later all the same.
    """

    method: str
    target: str
    times: int | None = 1
    answer: int = 0
    reset: bool = False
    drop_reply: bool = False
    truncate: int | None = None
    change: Callable[[bytes], bytes] | None = None
    hold: bool = False
    cut: bool = False
    hits: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)
    landed: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self._released.set()


class _Broken(Exception):
    """The client's connection is to be broken."""


@dataclass
class FaultProxy:
    """A running proxy, what it has seen, and the faults to come."""

    endpoint_url: str
    upstream: tuple[str, int]
    seen: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    late: list[threading.Thread] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, method: str, target: str, **more: object) -> Fault:
        fault = Fault(method, target, **more)  # type: ignore[arg-type]
        with self.lock:
            self.faults.append(fault)
        return fault

    def reset(self) -> None:
        """Forget all faults, and let go what was held."""
        with self.lock:
            faults, self.faults = self.faults, []
            late, self.late = self.late, []
            self.seen = []
        for fault in faults:
            fault.release()
        for thread in late:
            thread.join(WAIT_S)

    def requests(self, method: str, target: str) -> list[Seen]:
        with self.lock:
            return [one for one in self.seen if one.method == method and re.search(target, one.target)]

    def fault_for(self, method: str, target: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                used_up = fault.times is not None and fault.hits >= fault.times
                if not used_up and re.fullmatch(fault.method, method) and re.search(fault.target, target):
                    fault.hits += 1
                    return fault
        return None


class _Handler(socketserver.StreamRequestHandler):
    """One client's connection: request after request, each on an upstream connection of its own."""

    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(_Broken, OSError):
            while self._one():
                pass

    def _one(self) -> bool:
        first = self.rfile.readline()
        if not first.strip():
            return False
        method, target, _ = first.decode("latin-1").split(" ", 2)
        head = _head(self.rfile)
        if "100-continue" in _value(head, b"expect"):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = [line for line in head if not line.lower().startswith(b"expect:")]
        body = _body(self.rfile, head)
        raw = first + b"".join(head) + b"\r\n" + body
        proxy: FaultProxy = self.server.proxy  # type: ignore[attr-defined]
        fault = proxy.fault_for(method, target)
        if fault is not None:
            fault.arrived.set()

        def note(forwarded: bool, status: int) -> None:
            with proxy.lock:
                proxy.seen.append(Seen(method, target, body, forwarded, status))

        reply = self._reply(proxy, fault, method, raw, note)
        self.wfile.write(reply)
        return b"connection: close" not in reply.partition(b"\r\n\r\n")[0].lower()

    def _reply(
        self, proxy: FaultProxy, fault: Fault | None, method: str, raw: bytes, note: Callable[[bool, int], None]
    ) -> bytes:
        if fault is None:
            head, body = _forward(proxy.upstream, method, raw)
            note(True, _status(head))
            return head + body
        if fault.answer:
            note(False, fault.answer)
            return _refusal(fault.answer, method)
        if fault.reset:
            note(False, 0)
            self._break()
        if fault.hold and fault.cut:
            note(False, 0)
            self._land_later(proxy, fault, method, raw)
            self._break()
        if fault.hold:
            fault._released.wait(WAIT_S)
        head, body = _forward(proxy.upstream, method, raw)
        fault.landed.set()
        if fault.drop_reply:
            note(True, 0)
            self._break()
        note(True, _status(head))
        if fault.change is not None:
            body = fault.change(_plain(head, body))
            head = _with_length(head, len(body))
        elif fault.truncate is not None:
            self.wfile.write(_with_length(head, len(body)) + _plain(head, body)[: fault.truncate])
            self._break()
        return head + body

    def _land_later(self, proxy: FaultProxy, fault: Fault, method: str, raw: bytes) -> None:
        def land() -> None:
            fault._released.wait(WAIT_S)
            _forward(proxy.upstream, method, raw)
            fault.landed.set()

        thread = threading.Thread(target=land, daemon=True)
        with proxy.lock:
            proxy.late.append(thread)
        thread.start()

    def _break(self) -> None:
        """End the connection by a reset."""
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _Broken


def _head(stream: socketserver.BufferedReader) -> list[bytes]:  # type: ignore[name-defined]
    lines = []
    while (line := stream.readline()).strip():
        lines.append(line)
    return lines


def _value(head: list[bytes], name: bytes) -> str:
    for line in head:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip().decode("latin-1").lower()
    return ""


def _body(stream: socketserver.BufferedReader, head: list[bytes]) -> bytes:  # type: ignore[name-defined]
    """The bytes of a body as they stand on the wire."""
    if "chunked" in _value(head, b"transfer-encoding"):
        raw = b""
        while True:
            line = stream.readline()
            raw += line
            size = int(line.split(b";")[0], 16)
            raw += stream.read(size + 2) if size else b"".join([*_head(stream), b"\r\n"])
            if not size:
                return raw
    body: bytes = stream.read(int(_value(head, b"content-length") or 0))
    return body


def _forward(upstream: tuple[str, int], method: str, raw: bytes) -> tuple[bytes, bytes]:
    """The head (with its empty line) and the body of the server's reply."""
    with socket.create_connection(upstream, WAIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(raw)
        with connection.makefile("rb") as stream:
            while True:
                first = stream.readline()
                if not first:
                    raise _Broken
                head = _head(stream)
                if first.split()[1] != b"100":
                    break
            status = int(first.split()[1])
            bare = method == "HEAD" or status in (204, 304)
            if bare:
                body = b""
            elif _value(head, b"transfer-encoding") or _value(head, b"content-length"):
                body = _body(stream, head)
            else:
                body = stream.read()
                head.append(b"Connection: close\r\n")
            return first + b"".join(head) + b"\r\n", body


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


def _plain(head: bytes, body: bytes) -> bytes:
    """A body without the marks of chunks."""
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    plain = b""
    while True:
        line, _, body = body.partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if not size:
            return plain
        plain, body = plain + body[:size], body[size + 2 :]


def _with_length(head: bytes, length: int) -> bytes:
    unwanted = (b"content-length:", b"transfer-encoding:", b"x-amz-checksum", b"etag:")
    lines = [line for line in head.split(b"\r\n") if line and not line.lower().startswith(unwanted)]
    return b"\r\n".join([*lines, b"Content-Length: %d" % length, b"", b""])


def _refusal(status: int, method: str) -> bytes:
    code = CODES.get(status, "InternalError")
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>by the test</Message></Error>'
    sent = b"" if method == "HEAD" else body.encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/xml\r\nContent-Length: {len(sent)}\r\n\r\n"
    return head.encode() + sent


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


@contextlib.contextmanager
def fault_proxy(upstream_url: str) -> Iterator[FaultProxy]:
    """A proxy on a free port of 127.0.0.1, on threads of this process."""
    parts = urlsplit(upstream_url)
    assert parts.hostname and parts.port
    server = _Server(("127.0.0.1", 0), _Handler)
    proxy = FaultProxy(f"http://127.0.0.1:{server.server_address[1]}", (parts.hostname, parts.port))
    server.proxy = proxy  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.reset()
        server.shutdown()
        thread.join()
        server.server_close()
