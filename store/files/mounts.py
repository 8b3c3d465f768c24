"""The kind of file system that holds a directory.

Owns the reading of the kernel's table of mounts. Source: proc(5), /proc/self/mounts.
"""

import os
import re
from typing import Final

_MOUNTS: Final = "/proc/self/mounts"
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


def is_in_memory(directory: str) -> bool:
    """Whether files in a directory are in memory only, so that a sync of them does nothing.

    False where the kernel has no table of mounts."""
    path = os.fsencode(os.path.realpath(directory))
    longest, kind = b"", ""
    try:
        with open(_MOUNTS, "rb") as file:
            lines = file.readlines()
    except OSError:
        return False
    for line in lines:
        _, escaped, its_kind, *_ = line.split(b" ")
        mount = _ESCAPED.sub(lambda octal: bytes((int(octal[1], 8),)), escaped)
        is_inside = path == mount or path.startswith(mount.rstrip(b"/") + b"/")
        if is_inside and len(mount) >= len(longest):  # A later mount hides an earlier one.
            longest, kind = mount, its_kind.decode()
    return kind in _IN_MEMORY
