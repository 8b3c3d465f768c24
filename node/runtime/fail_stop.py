"""How a node ends: signals, exit codes, and the end of one that cannot trust its memory any more.

Owns the report written before such an end: a dump file in the data directory with the error, the
last inputs, the state and all stacks. The node acknowledges no record after the end began. The
process ends without any clean-up, as in a crash, for which recovery is made. The end waits for no
thread, and for the dump DUMP_TIMEOUT_S at most: the disk of the dump may be the one that hangs.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from node.errors.common import NewerLevelError, UnknownCommandError
from node.runtime.clock import unix_ms
from node.runtime.sync_watch import SyncHangsError
from store.durability.fatal import EXIT_INTERNAL_ERROR, EXIT_SYNC_FAILED
from store.errors import CorruptionError, FileSystemError, SyncFailedError

EXIT_OK: Final = 0
EXIT_BAD_DATA: Final = 65  # EX_DATAERR: the directory is damaged, or another node's.
EXIT_STOP_TIMEOUT: Final = 69  # EX_UNAVAILABLE: the stop did not end in time.
EXIT_TRY_LATER: Final = 75  # EX_TEMPFAIL: locked, port taken, disk full.
EXIT_BAD_CONFIG: Final = 78  # EX_CONFIG.

DUMP_PREFIX: Final = "dump-"
DAMAGE_MARKER: Final = "damage-found"
"""File that makes the next start check the whole log first: opening checks its end only."""
DUMP_COUNT_MAX: Final = 10
"""Dump files kept; older ones are removed: a node that restarts repeatedly must not fill its disk.
"""
INPUT_COUNT_MAX: Final = 512
DUMP_TIMEOUT_S: Final = 5.0
"""Time for a dump, which takes milliseconds. Peers count on the lost node for as long as it lasts.
"""

_FILE_MODE: Final = 0o600
"""Mode of a dump, for its owner alone: a dump contains messages of clients."""

Describe = Callable[[], dict[str, Any]]


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a process in order: SIGTERM, SIGINT and, unless this process
    ignores it as under `nohup`, SIGHUP, which a terminal that closes sends. They reach this process
    from now on, also if its parent had blocked them: a mask is inherited."""
    signals = (signal.SIGTERM, signal.SIGINT)
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = signals if is_ignored else (*signals, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    return handled


class FailStop:
    """Ends the process with a dump. One per process; call it from any thread."""

    def __init__(
        self,
        directory: Path,
        end: Callable[[int], NoReturn] = os._exit,
        dump_timeout_s: float = DUMP_TIMEOUT_S,
    ) -> None:
        """Dump into `directory`. `end` and `dump_timeout_s` are for tests."""
        self._directory = directory
        self._end, self._dump_timeout_s = end, dump_timeout_s
        self._lock = threading.Lock()
        self.inputs: Final = deque[tuple[Any, ...]](maxlen=INPUT_COUNT_MAX)
        """The last inputs of the node, oldest first; the component that takes one appends it here.
        """
        self.describe: Describe = dict
        """Returns the state of the node; called once, and may fail."""

    def __call__(self, error: BaseException) -> NoReturn:
        """Write the dump, write the reason to stderr, end the process; later callers wait.

        A build that is too old for its log broke nothing: it writes the reason alone."""
        with self._lock:
            if isinstance(error, NewerLevelError | UnknownCommandError):
                sys.stderr.write(f"quorumlog: the process ends: {error}\n")
                sys.stderr.flush()
                self._end(EXIT_BAD_CONFIG)
            is_disk = isinstance(error, SyncFailedError | SyncHangsError | FileSystemError)
            match error:
                case SyncFailedError():
                    what = "a sync failed"
                case SyncHangsError():
                    what = "a sync hangs"
                case FileSystemError():
                    what = "its disk failed"
                case CorruptionError():
                    what = "what was committed is damaged on its disk"
                case _:
                    what = "an invariant is broken"
            dump = self._dump_in_time(error)
            text = "".join(traceback.format_exception(error))
            sys.stderr.write(
                f"{text}quorumlog: the process ends because {what}: {error!r}\n"
                f"Nothing after it was acknowledged. {dump} Start it again to recover.\n"
            )
            sys.stderr.flush()
            self._end(EXIT_SYNC_FAILED if is_disk else EXIT_INTERNAL_ERROR)

    def _dump_in_time(self, error: BaseException) -> str:
        """Run `_dump` on a thread that may hang; return a sentence about the dump."""
        lines: list[str] = []
        writing = threading.Thread(target=lambda: lines.append(self._dump(error)), daemon=True)
        try:
            writing.start()
        except RuntimeError as trouble:  # No more threads.
            return f"No dump was written ({trouble})."
        writing.join(self._dump_timeout_s)
        return lines[0] if lines else f"No dump was written within {self._dump_timeout_s:g} s."

    def _dump(self, error: BaseException) -> str:
        """Write the file; return a sentence about it. An error here must not hide the first one."""
        if isinstance(error, CorruptionError):
            with contextlib.suppress(OSError):  # Else the next run meets the damage again.
                (self._directory / DAMAGE_MARKER).touch()
        path = self._directory / f"{DUMP_PREFIX}{unix_ms()}-{os.getpid()}.txt"
        try:
            old = sorted(self._directory.glob(f"{DUMP_PREFIX}*.txt"))
            for one in old[: max(0, len(old) - DUMP_COUNT_MAX + 1)]:
                one.unlink()
            with open(path, "w", encoding="utf-8", opener=_private) as file:
                file.write("".join(traceback.format_exception(error)))
                file.write(f"\nstate:\n{self._state()}\n\nlast inputs, oldest first:\n")
                file.writelines(f"{one!r}\n" for one in tuple(self.inputs))
                file.write("\nstacks of all threads:\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError as trouble:
            return f"No dump was written ({trouble})."
        return f"What is known is in {path}."

    def _state(self) -> str:
        try:
            return json.dumps(self.describe(), indent=1, default=repr)
        except Exception as trouble:  # noqa: BLE001 - the state itself may be broken.
            return f"could not be described: {trouble!r}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)
