"""The shim between a node and its disk: compiled once, and steered while the node runs.

Owns the layout of the control file, which shim.c maps; must not know which node it is for. A node
gets the shim by three variables of its environment. Without a C compiler there is no shim: the
scenarios that need it are then skipped, by name.
"""

import mmap
import os
import shutil
import struct
import subprocess
from enum import IntEnum
from pathlib import Path
from typing import Final

from chaos.errors import ChaosError, NotPossibleHereError

SOURCE: Final = Path(__file__).with_name("shim.c")
_RULE: Final = struct.Struct("=IIIIQQ")
_CLOCK: Final = struct.Struct("=qQ")
_SIZE_BYTES: Final = 4096


class SystemCall(IntEnum):
    """Calls that can be made to fail; the numbers are shim.c's."""

    SYNC = 0
    SYNC_DIRECTORY = 1
    ALLOCATE = 2
    RENAME = 3
    CREATE = 4
    WRITE = 5
    READ = 6
    SET_SIZE = 7


class _Action(IntEnum):
    OFF = 0
    FAIL = 1
    DELAY = 2
    HANG = 3


_CLOCK_AT: Final = _RULE.size * len(SystemCall)


def compile_shim(directory: Path) -> Path:
    """Compile the shim into a directory. Raises NotPossibleHereError without a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        raise NotPossibleHereError("there is no C compiler to build the shim with; install gcc")
    made = directory / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChaosError("the shim does not compile", done.stderr.strip()[-500:], "repair shim.c")
    return made


class Shim:
    """The shim of one node, whose control file outlives each of its processes."""

    def __init__(self, library: Path, root: Path, control: Path, shadow: Path | None) -> None:
        """`root` holds the node's files, `shadow` a copy of durable data; None: no copy."""
        self._library, self._root = library, root
        self.shadow: Final = shadow
        """Remainder after a power loss, see power.py; None unless it is kept."""
        self._path = control
        self._path.write_bytes(bytes(_SIZE_BYTES))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE_BYTES)
        if shadow is not None:
            shadow.mkdir(parents=True, exist_ok=True)

    def environment(self) -> dict[str, str]:
        """Return the variables for the node's process."""
        variables = {
            "LD_PRELOAD": str(self._library),
            "QUORUMLOG_TEST_SHIM": str(self._path),
            "QUORUMLOG_TEST_SHIM_ROOT": str(self._root),
        }
        if self.shadow is not None:
            variables["QUORUMLOG_TEST_SHIM_SHADOW"] = str(self.shadow)
        return variables

    def fail(self, call: SystemCall, error: int, *, times: int = 0) -> None:
        """Let these calls fail, `times` times (0: until changed)."""
        self._set(call, _Action.FAIL, error, 0, times)

    def delay(self, call: SystemCall, delay_ms: int) -> None:
        """Let these calls take `delay_ms` longer."""
        self._set(call, _Action.DELAY, 0, delay_ms, 0)

    def hang(self, call: SystemCall) -> None:
        """Let these calls hang until changed."""
        self._set(call, _Action.HANG, 0, 0, 0)

    def clear(self) -> None:
        """End all faults of this shim."""
        for call in SystemCall:
            self._set(call, _Action.OFF, 0, 0, 0)
        _CLOCK.pack_into(self._map, _CLOCK_AT, 0, 0)

    def set_clock(self, offset_s: int) -> None:
        """Move the wall clock by `offset_s`."""
        _CLOCK.pack_into(self._map, _CLOCK_AT, offset_s * 1_000_000_000, 0)

    @property
    def clock_reads(self) -> int:
        """Number of reads of a moved clock."""
        return int(_CLOCK.unpack_from(self._map, _CLOCK_AT)[1])

    def passes(self, call: SystemCall) -> int:
        """Return how many of these calls were made."""
        return int(_RULE.unpack_from(self._map, call * _RULE.size)[4])

    def hits(self, call: SystemCall) -> int:
        """Return on how many of these calls a fault took effect."""
        return int(_RULE.unpack_from(self._map, call * _RULE.size)[5])

    def close(self) -> None:
        """Release the control file."""
        self._map.close()

    def _set(
        self, call: SystemCall, action: _Action, error: int, delay_ms: int, times: int
    ) -> None:
        # The counters behind stay; the action is set last, after all its parameters.
        at = call * _RULE.size
        struct.pack_into("=III", self._map, at + 4, error, delay_ms, times)
        struct.pack_into("=I", self._map, at, action)
