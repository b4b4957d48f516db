"""S3 through s3fs: exact keys, exact codes.

What this file alone knows: which requests of the S3 API are sent, and what S3's and its imitators' error codes mean.

Requests go through `call_s3` with Bucket and Key, never through paths: s3fs's path functions expand, split and cache.
What `call_s3` does to an error (s3fs 2026.9): it retries time-outs, broken connections and `SlowDown` up to `retries`
times, and then raises an OSError made from the code, with botocore's exception as its cause. Codes it does not know
become EIO, a 412 becomes FileExistsError or EINVAL depending on a field that only some servers fill in.

Rules a change must keep:
- No bucket is made, listed or probed: a user may have rights on the run's own prefix and nothing else.
- A 404 is an absent object only if the code says NoSuchKey: NoSuchBucket, or a proxy's own 404, is not. Only a HEAD,
  which has no body to carry a code, is taken at its word.
- A record is one PutObject. Multipart uploads are for files.
- Few retries inside: the caller retries, knows what for, and reads back in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import botocore.exceptions
import botocore.parsers
import s3fs
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from fsspec.asyn import sync

from tallymark.store.backend import Fault, Meaning, Piece
from tallymark.store.port import Failed, Listed

PART_BYTES = 16 << 20
MOST_PARTS = 10_000
_TRIES_PER_BODY = 3

_OURS = {"use_listings_cache": False, "skip_instance_cache": True, "asynchronous": False, "cache_regions": False}
_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 15,
    "max_pool_connections": 32,
    "retries": {"mode": "standard", "total_max_attempts": 2},
}
_DENIED_CODES = {
    *("NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "AuthorizationHeaderMalformed", "ExpiredToken"),
    *("InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"),
    *("InvalidSecurity", "CredentialsNotSupported", "IllegalLocationConstraintException"),
}
_PASSING_CODES = {
    *("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "BadDigest"),
    *("IncompleteBody", "XAmzContentSHA256Mismatch", "InternalError", "ServiceUnavailable", "NoSuchUpload"),
}


class S3Backend:
    """One bucket, through a private `s3fs.S3FileSystem`."""

    __slots__ = ("_bucket", "_fs", "creates_exclusively", "lists_in_order")

    def __init__(self, bucket: str, options: Mapping[str, Any], *, like: Any = None) -> None:
        kind = s3fs.S3FileSystem if like is None else type(like)
        if not issubclass(kind, s3fs.S3FileSystem):
            raise TypeError(f"a filesystem of class {kind.__name__} is not an s3fs.S3FileSystem")
        arguments = () if like is None else like.storage_args
        config = {**_CONFIG, **(options.get("config_kwargs") or {})}
        AioConfig(**config)  # Raises now what it would raise at the first request.
        unwanted = ("loop", "listings_expiry_time", "max_paths")
        kept = {name: value for name, value in options.items() if name not in unwanted}
        self._fs: Any = kind(*arguments, **{**kept, **_OURS, "config_kwargs": config})
        self._fs.retries = 1
        self._bucket = bucket
        self.creates_exclusively = True
        # Directory buckets (S3 Express) list in no order and know no StartAfter.
        self.lists_in_order = not bucket.endswith("--x-s3")

    def get(self, name: str) -> bytes:
        body, _ = self._fetch(Key=name)
        return body

    def get_range(self, name: str, start: int, stop: int) -> Piece:
        try:
            body, reply = self._fetch(Key=name, Range=f"bytes={start}-{stop - 1}")
        except Exception as exc:
            if _code_of(exc)[0] == 416 and start == 0:  # No byte of an empty object is in any range.
                return self._empty(name)
            raise
        total = str(reply.get("ContentRange", "")).rpartition("/")[2]
        if not total.isdigit() and start:
            raise botocore.exceptions.DataNotFoundError(data_path="ContentRange: the server ignores Range")
        # Without ContentRange the server sent all of it.
        return Piece(body[: stop - start], int(total) if total.isdigit() else len(body), str(reply.get("ETag", "")))

    def put(self, name: str, body: bytes, *, exclusively: bool) -> None:
        condition = {"IfNoneMatch": "*"} if exclusively else {}
        self._call("put_object", Key=name, Body=body, **condition)

    def send(self, name: str, blocks: Callable[[int], bytes], size: int) -> None:
        part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        upload = self._call("create_multipart_upload", Key=name)["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            while block := blocks(part_bytes):
                number = len(parts) + 1
                reply = self._call("upload_part", Key=name, UploadId=upload, PartNumber=number, Body=block)
                parts.append({"PartNumber": number, "ETag": reply["ETag"]})
            self._call("complete_multipart_upload", Key=name, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            # Parts of an open upload are paid for. If this fails too, a lifecycle rule of the bucket has to do it.
            with contextlib.suppress(Exception):
                self._call("abort_multipart_upload", Key=name, UploadId=upload)
            raise

    def pages(self, prefix: str, after: str) -> Iterator[Sequence[Listed]]:
        more = {"StartAfter": after} if after and self.lists_in_order else {}
        while True:
            reply = self._call("list_objects_v2", Prefix=prefix, **more)
            if "IsTruncated" not in reply:  # a page that lost its body parses as an empty one: it is not the last
                raise botocore.exceptions.DataNotFoundError(data_path="IsTruncated of a listing")
            page = [Listed(item["Key"], int(item["Size"])) for item in reply.get("Contents", ())]
            yield page
            if not reply["IsTruncated"]:
                return
            token = reply.get("NextContinuationToken")
            if token:
                more = {"ContinuationToken": token}
            elif page and self.lists_in_order and page[-1].key != more.get("StartAfter"):
                more = {"StartAfter": page[-1].key}
            else:
                raise botocore.exceptions.DataNotFoundError(data_path="NextContinuationToken of a truncated listing")

    def delete(self, names: Sequence[str]) -> Sequence[Failed]:
        try:
            reply = self._call("delete_objects", Delete={"Objects": [{"Key": name} for name in names], "Quiet": True})
        except Exception as exc:
            if self.explain(exc, looking=False).meaning is not Meaning.LASTING:
                raise
            # A server without batches, or a key that XML cannot carry.
            return self._delete_singly(names)
        return [
            Failed(str(error.get("Key")), f"{error.get('Code')}: {error.get('Message')}")
            for error in reply.get("Errors", ())
            if error.get("Code") != "NoSuchKey"
        ]

    def _delete_singly(self, names: Sequence[str]) -> Sequence[Failed]:
        failed = []
        for name in names:
            try:
                self._call("delete_object", Key=name)
            except Exception as exc:
                fault = self.explain(exc, looking=False)
                if fault.meaning is Meaning.LASTING:
                    failed.append(Failed(name, fault.why))
                elif fault.meaning is not Meaning.ABSENT:
                    raise
        return failed

    def size(self, name: str) -> int:
        return int(self._call("head_object", Key=name)["ContentLength"])

    def explain(self, error: Exception, *, looking: bool) -> Fault:
        status, code, text = _code_of(error)
        why = f"{code} ({status}): {text}" if status else f"{type(error).__name__}: {error}"
        return Fault(_meaning(status, code, looking) if status else _meaning_without_reply(error), why)

    def _call(self, method: str, **request: Any) -> Any:
        return self._fs.call_s3(method, Bucket=self._bucket, **request)

    def _empty(self, name: str) -> Piece:
        reply = self._call("head_object", Key=name)
        return Piece(b"", int(reply["ContentLength"]), str(reply.get("ETag", "")))

    def _fetch(self, **request: Any) -> tuple[bytes, Mapping[str, Any]]:
        """GetObject with its body. A body that breaks off is asked for again: nobody below does that."""

        async def fetch(more_tries: int) -> tuple[bytes, Mapping[str, Any]]:
            reply = await self._fs._call_s3("get_object", Bucket=self._bucket, **request)
            try:
                async with reply["Body"] as stream:
                    body: bytes = await stream.read()
                if len(body) != reply["ContentLength"]:
                    raise ConnectionError(f"{len(body)} bytes came of {reply['ContentLength']}")
            except Exception:
                if not more_tries:
                    raise
            else:
                return body, reply
            return await fetch(more_tries - 1)

        result: tuple[bytes, Mapping[str, Any]] = sync(self._fs.loop, fetch, _TRIES_PER_BODY - 1)
        return result


def _code_of(error: BaseException | None) -> tuple[int, str, str]:
    """HTTP status, S3 code and message of the reply behind an error; status 0 if there was none."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and "Error" in response:
            details = response["Error"]
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = str(details.get("Code", ""))
            return int(status or (code if code.isdigit() else 400)), code, str(details.get("Message", ""))
        error = error.__cause__
    return 0, "", ""


def _meaning(status: int, code: str, looking: bool) -> Meaning:
    if code in _PASSING_CODES:
        return Meaning.PASSING
    if code in _DENIED_CODES:
        return Meaning.DENIED
    if status == 404:
        if code == "NoSuchKey" or looking:
            return Meaning.ABSENT
        return Meaning.PASSING  # Not S3's own answer: a proxy or a gateway that starts up.
    if status == 412:
        return Meaning.TAKEN
    if status in (301, 307, 401, 403):
        return Meaning.DENIED
    if status in (408, 409, 425, 429) or (status >= 500 and status != 501):
        return Meaning.PASSING
    return Meaning.LASTING


def _meaning_without_reply(error: Exception) -> Meaning:
    wrong_setup = (
        botocore.exceptions.NoCredentialsError,
        botocore.exceptions.PartialCredentialsError,
        botocore.exceptions.CredentialRetrievalError,
        botocore.exceptions.ProfileNotFound,
        botocore.exceptions.NoRegionError,
    )
    if isinstance(error, wrong_setup):
        return Meaning.DENIED
    on_the_way = (
        OSError,  # with TimeoutError and ConnectionError
        aiohttp.ClientError,
        botocore.exceptions.HTTPClientError,
        botocore.exceptions.ConnectionError,
        botocore.exceptions.IncompleteReadError,
        botocore.exceptions.FlexibleChecksumError,
        botocore.parsers.ResponseParserError,
        botocore.exceptions.DataNotFoundError,
    )
    return Meaning.PASSING if isinstance(error, on_the_way) else Meaning.LASTING
