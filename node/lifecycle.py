"""The life of a node's process: from settings to an exit code.

Owns signals, the time limit of a stop and the exit code of each error; docs/operations.md has the
table. SIGTERM, SIGINT or SIGHUP: take no new appends, hand leadership over, finish running calls,
sync, close. A second signal: close safely without waiting for clients or peers. A watchdog ends the
process if the stop takes too long.
"""

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

import structlog

from node.config.settings import Settings
from node.config.start_advice import mode_of, told
from node.errors.common import NewerLevelError, NodeError, UnknownCommandError
from node.node import Node
from node.peers.security.tls import TlsFileError
from node.replication.ha.assembly import build_ha
from node.replication.ha.core.types import HaError
from node.replication.ha.storage.losses import LossFileError
from node.replication.ha.storage.replica_file import GroupChangedError
from node.replication.raft.assembly import build_raft
from node.replication.raft.storage.snapshot import SnapshotFormatError
from node.replication.term_end import TermEndError
from node.runtime.fail_stop import (
    EXIT_BAD_CONFIG,
    EXIT_BAD_DATA,
    EXIT_OK,
    EXIT_STOP_TIMEOUT,
    EXIT_TRY_LATER,
    FailStop,
    stop_signals,
)
from node.runtime.heap import keep_freed_memory
from node.runtime.identity import IdentityMismatchError
from node.runtime.logs import form
from node.runtime.private_files import make_private
from node.runtime.supervisor import keep_informed
from node.services.server import PortTakenError
from store.errors import (
    CorruptionError,
    DerivedFileError,
    LayoutError,
    SnapshotNeededError,
    StoreError,
    SyncFailedError,
)

CLOSE_TIMEOUT_MS: Final = 30_000
"""Time to sync and close after the drain; then the process ends as in a crash."""
_OWN_PACKAGES: Final = ("node.", "raft.", "store.")
_log: Final = structlog.get_logger(component="lifecycle")


def run(settings: Settings, origins: Mapping[str, str]) -> int:
    """Serve until told to stop; return the exit code. `origins` says where each setting is from."""
    if not __debug__:
        sys.stderr.write(
            "quorumlog: assertions are off (python -O, PYTHONOPTIMIZE), and they are part of what "
            "keeps data safe; start without\n"
        )
        return EXIT_BAD_CONFIG
    import uvloop

    keep_freed_memory()
    faulthandler.enable()  # A fatal signal leaves no dump, so at least print all stacks to stderr.
    form.configure(settings.log_level, settings.log_format, bound={"node": settings.node_id})
    fail_stop = FailStop(settings.directory)
    try:
        make_private(settings.directory)
        return uvloop.run(_live(settings, origins, fail_stop))
    except (StoreError, NodeError, HaError, PortTakenError, OSError) as error:
        text = told(error, mode_of(settings))
        _log.error("cannot start", code=getattr(error, "code", "os"), error=text)
        return exit_code_of(error)
    except (AssertionError, SyncFailedError) as error:
        fail_stop(error)


def exit_code_of(error: Exception) -> int:
    """Return the exit code for an error at start."""
    match error:
        case TlsFileError() | GroupChangedError() | NewerLevelError() | UnknownCommandError():
            return EXIT_BAD_CONFIG
        case CorruptionError() | LayoutError() | DerivedFileError() | SnapshotNeededError():
            return EXIT_BAD_DATA
        case IdentityMismatchError() | SnapshotFormatError() | LossFileError() | TermEndError():
            return EXIT_BAD_DATA
    return EXIT_TRY_LATER


async def _live(settings: Settings, origins: Mapping[str, str], fail_stop: FailStop) -> int:
    return await _Life(settings, origins, fail_stop).run()


class _Life:
    def __init__(self, settings: Settings, origins: Mapping[str, str], fail_stop: FailStop) -> None:
        self._settings = settings
        self._fail_stop = fail_stop
        self._stop = asyncio.Event()
        self._changed: Final = asyncio.Event()
        """Set when the service manager has to know another state."""
        build = build_ha if settings.is_ha else build_raft
        self._node: Final = Node(settings, fail_stop, build, origins)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        for number in stop_signals():
            loop.add_signal_handler(number, self._on_signal, number)
        node = self._node
        node.health.add_listener(lambda _: self._changed.set())
        informed = asyncio.create_task(keep_informed(self._state, self._changed), name="supervisor")
        start = asyncio.create_task(node.start(), name="start")
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        await asyncio.wait((start, stop), return_when=asyncio.FIRST_COMPLETED)
        is_up = start.done() and start.exception() is None
        if is_up:
            await stop
        else:
            # The start failed, or a signal came before it ended.
            start.cancel()
            node.hurry.set()
            await asyncio.gather(start, return_exceptions=True)
        stop.cancel()
        watchdog = self._watch_over_stop()
        await node.stop()
        watchdog.cancel()
        informed.cancel()
        if not is_up and not start.cancelled():
            start.result()
        return EXIT_OK

    def _state(self) -> str:
        """Return what sd_notify says of the node. READY stays said, also when no node leads."""
        is_ready, reason = self._node.health.ready()
        reason = " ".join(reason.split())  # Each line is a message of its own.
        if self._stop.is_set():
            return f"STATUS={reason}\nSTOPPING=1"
        return f"STATUS={reason}" + "\nREADY=1" * is_ready

    def _on_signal(self, number: signal.Signals) -> None:
        name = signal.Signals(number).name
        if not self._stop.is_set():
            _log.info("stops", signal=name)
            self._stop.set()
            self._changed.set()
        else:
            _log.warning("stops without waiting", signal=name)
            self._node.hurry.set()

    def _watch_over_stop(self) -> threading.Timer:
        """End the process if the stop hangs, as on a disk that does not answer."""
        timeout_s = (self._settings.drain_timeout_ms + CLOSE_TIMEOUT_MS) / 1000

        def end() -> None:
            sys.stderr.write(
                f"quorumlog: the stop did not end within {timeout_s:g} s, the process ends as in a "
                f"crash. Nothing acknowledged is lost.\n"
            )
            sys.stderr.flush()
            os._exit(EXIT_STOP_TIMEOUT)

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        return timer

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Log an error that no task awaited; end the process if it is ours.

        After an error of our own code the state in memory cannot be trusted.
        """
        error = context.get("exception")
        if isinstance(error, Exception) and is_ours(error):
            self._fail_stop(error)
        _log.error("the event loop met an error", what=context.get("message"), exc_info=error)


def is_ours(error: BaseException) -> bool:
    """Whether an error passed through our own packages, not through a library alone."""
    if isinstance(error, AssertionError | SyncFailedError):
        return True
    traceback = error.__traceback__
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__"))
        if module.startswith(_OWN_PACKAGES):
            return True
        traceback = traceback.tb_next
    return False
