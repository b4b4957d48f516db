"""Runs that several processes share: a local folder, and a bucket on a server that handles one request at a time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.servers import S3Server

from tallymark.store.open import open_store
from tallymark.store.port import RunStore

BUCKET = "endurance"
PRIVATE = re.compile(r"\.tallymark-[0-9a-f]{32}")
_runs = itertools.count()


@dataclass
class Place:
    """Where runs are kept. `run()` names a new one; `store` is this process's client of it."""

    kind: str
    url: str
    server: S3Server | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def run(self) -> Place:
        return Place(self.kind, f"{self.url}/run-{next(_runs):04d}", self.server, self.storage_options)

    @cached_property
    def store(self) -> RunStore:
        return open_store(self.url, storage_options=self.storage_options)

    def spec(self, **more: Any) -> dict[str, Any]:
        """What a child needs to know."""
        return {"url": self.url, "storage_options": self.storage_options, "kill": None, **more}

    def dump(self) -> dict[str, bytes]:
        """Every object of the run, read behind the library's back. On a disk, what a killed process was about to
        publish lies beside them, under a private name."""
        if self.server is None:
            root = Path(self.url)
            files = [file for file in root.rglob("*") if file.is_file() and not PRIVATE.fullmatch(file.name)]
            return {str(file.relative_to(root)): file.read_bytes() for file in files}
        prefix = self.url.removeprefix(f"s3://{BUCKET}/") + "/"
        client = self.server.client()
        try:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
            keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
            return {key.removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
        finally:
            client.close()
