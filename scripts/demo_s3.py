"""Run `tallymark demo` against moto's S3 server, started on a free loopback port and stopped again.

moto checks whether a key is free and then writes it, without a lock: two racing creates may both win. So the server
handles one request at a time here. It shows the interface; it is no judge of a real store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

BUCKET = "demo"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


def serve() -> None:
    """Serve S3 on a free port until stdin closes or a signal comes; the port is the first line of stdout."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    inner = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with one_at_a_time:
            return list(inner(environ, start_response))

    def end_with_parent() -> None:
        sys.stdin.read()  # the parent never writes: this returns when it is gone, however it ended
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    print(server.server_port, flush=True)
    server.serve_forever()


def start_server(log: IO[bytes]) -> tuple[subprocess.Popen[bytes], str]:
    """Start the server as a process; returns it and its URL. Raises SystemExit if it does not come up in time."""
    command = [sys.executable, __file__, "--serve"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert server.stdout is not None
    timer = threading.Timer(START_TIMEOUT_S, server.kill)
    timer.start()
    try:
        port = server.stdout.readline().strip()
    finally:
        timer.cancel()
    if not port:
        server.kill()
        server.wait()
        raise SystemExit(f"the S3 server did not start within {START_TIMEOUT_S:.0f} s")
    return server, f"http://127.0.0.1:{int(port)}"


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """End the server, by force if it does not listen."""
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def environment(endpoint: str) -> dict[str, str]:
    """The environment of the demo: this server and its made-up credentials, and nobody's real ones."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return mine | {
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def make_bucket(ours: dict[str, str]) -> None:
    """Create the bucket, as its owner would: tallymark itself never creates one."""
    create = f"import boto3; boto3.client('s3').create_bucket(Bucket={BUCKET!r})"
    subprocess.run([sys.executable, "-c", create], env=ours, check=True, timeout=START_TIMEOUT_S)


def main() -> int:
    """Run the demo; the exit code is its own."""
    with tempfile.TemporaryFile() as log:
        server, endpoint = start_server(log)
        try:
            ours = environment(endpoint)
            make_bucket(ours)
            command = [str(Path(sys.executable).with_name("tallymark")), "demo", f"s3://{BUCKET}/demo", *sys.argv[1:]]
            print(f"S3 server: {endpoint} (moto)", flush=True)
            return subprocess.run(command, env=ours, check=False).returncode
        finally:
            stop_server(server)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(main())
