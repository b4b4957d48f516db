"""No credential is ever written or printed: planted ones are looked for in everything that a run leaves behind."""

from __future__ import annotations

import gzip
import logging

import pytest
from tests.servers import moto_server

import tallymark

KEY, SECRET = "PLANTEDKEY0123456789", "planted+secret/abcdefghijklmnopqrstuvwxyz"


@pytest.mark.rule("C9")
def test_planted_credentials_are_found_nowhere(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, logger="tallymark")
    (tmp_path / "shard.bin").write_bytes(b"shard")
    with moto_server() as server:
        server.make_bucket("bkt")
        options = {**server.storage_options, "key": KEY, "secret": SECRET}
        url = "s3://bkt/run"
        shown = []
        with tallymark.join(url, rank=0, world_size=1, launch_id="a", storage_options=options) as worker:
            manifest = worker.report({"loss": 1.0}, tmp_path / "shard.bin", step=0).wait(30)
            shown += [worker, manifest, manifest.checkpoint, worker.report({}, step=1)]
        run = tallymark.open(url, storage_options=options)
        driver = tallymark.Driver(url, storage_options=options)
        shown += [run, run.status(), driver, driver._store]
        with pytest.raises(tallymark.TallymarkError) as caught:
            tallymark.join(
                "s3://no-such-bucket/run",
                rank=0,
                world_size=1,
                launch_id="a",
                storage_options=options,
                store_timeout_s=1,
            )
        problem = caught.value
        while problem is not None:
            shown += [str(problem), repr(problem)]
            problem = problem.__cause__
        client = server.client()
        listed = client.list_objects_v2(Bucket="bkt")["Contents"]
        bodies = {item["Key"]: client.get_object(Bucket="bkt", Key=item["Key"])["Body"].read() for item in listed}
    assert len(bodies) > 8, "the run left nothing to look through"
    for key, body in bodies.items():
        text = key.encode() + (gzip.decompress(body) if key.endswith(".gz") else body)
        for planted in (KEY, SECRET):
            assert planted.encode() not in text, f"a credential stands in {key}"
    for planted in (KEY, SECRET):
        assert planted not in caplog.text
        assert not [item for item in shown if planted in f"{item!r} {item}"]
