"""Which kind of file system a path lies on, as Linux tells it in `/proc/self/mounts`.

Rules a change must keep:
- A kind is in `COHERENT` only if a file that one process made is seen by every other process at once.
- What cannot be found out is "", which is in neither set: not trusted, and not delayed either.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

NFS = frozenset({"nfs", "nfs4"})
COHERENT = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay"})


def file_system_type(path: Path, mounts: str = "/proc/self/mounts") -> str:
    """The type of the file system under `path`, which need not exist yet; "" if the machine does not say."""
    real = os.path.realpath(path)
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        # `>=`: of two mounts on one point the later one is on top.
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
