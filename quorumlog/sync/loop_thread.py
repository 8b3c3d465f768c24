"""One thread with an event loop, for programs without asyncio.

Owns the thread: the first user starts it, the last one stops it, and the end of the program closes
those that are left, since the thread stands still from then on. Must not know what is called.
"""

import asyncio
import concurrent.futures
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from quorumlog.cluster.forks import forks
from quorumlog.cluster.grpc_engine import check_descriptors
from quorumlog.cluster.program_end import at_end
from quorumlog.errors import ClosedError, InvalidRequestError, Outcome

_T = TypeVar("_T")
_Close = Callable[[], Coroutine[Any, Any, None]]

STOP_TIMEOUT_S: Final = 10
END_TIMEOUT_S: Final = 5
"""How long the end of a program waits for the messages of clients that it left open."""
_log = logging.getLogger("quorumlog.sync")


class LoopThread:
    """The event loop of all clients; each client that is started counts as a user."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal handler of the same thread may call as well.
        self._users: list[_Close] = []
        self._is_over = False  # The program is ending.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped: asyncio.Future[None] | None = None  # Done when the thread shall end.

    @property
    def is_running(self) -> bool:
        """Whether a call could be made. All objects of all clients are closed if not."""
        return self._loop is not None and not self._is_over and not sys.is_finalizing()

    def acquire(self, close: _Close) -> None:
        """Start the thread if it does not run. `close` is for the end of the program.

        Raises UnavailableError if too few file descriptors are free."""
        forks.check()  # Before the lock, which another thread of the parent may have held.
        with self._lock:
            self._check_not_over()
            if self._loop is None:
                check_descriptors()
                loop = asyncio.new_event_loop()
                stopped = loop.create_future()
                thread = threading.Thread(
                    target=self._run, args=(loop, stopped), name="quorumlog-sync", daemon=True
                )
                thread.start()  # Python refuses it at the end of the program from 3.12 on.
                self._loop, self._stopped, self._thread = loop, stopped, thread
            self._users.append(close)

    def release(self, close: _Close) -> None:
        """Stop the thread after its last user."""
        with self._lock:
            if close not in self._users:
                return  # The end of the program has stopped it.
            self._users.remove(close)
            if self._users:
                return
            thread = self._stop()
        thread.join(STOP_TIMEOUT_S)

    def end(self) -> None:
        """Close what the program left open as it ends; calls raise ClosedError from now on.

        What is not closed in time is cancelled, with a warning that counts its messages."""
        with self._lock:
            self._is_over = True
            users, self._users, loop = self._users, [], self._loop
            if loop is None:
                return
            closes = [asyncio.run_coroutine_threadsafe(close(), loop) for close in users]
        try:
            done, late = concurrent.futures.wait(closes, END_TIMEOUT_S)
            for error in (close.exception() for close in done if not close.cancelled()):
                if error is not None:
                    text = "; ".join([str(error), *getattr(error, "__notes__", [])])  # With counts.
                    _log.error("a client that was open as the program ended: %s", text)
            if late:
                text = "%d clients that were open as the program ended took more than %d s to close"
                _log.warning(text, len(late), END_TIMEOUT_S)
        finally:
            self._stop().join(timeout=1)  # Tasks that clean up for longer stand still then.

    def _check_not_over(self) -> None:
        if self._is_over or sys.is_finalizing():
            text = "the program is ending, which closed its clients; use 'with', or close() before"
            raise ClosedError(text)

    def _stop(self) -> threading.Thread:
        """Let the thread end, and return it."""
        with self._lock:
            loop, thread, stopped = self._loop, self._thread, self._stopped
            self._loop = self._thread = self._stopped = None
        assert loop is not None, "released without having been acquired"
        assert thread is not None, "a loop without a thread"
        assert stopped is not None, "a loop that cannot be stopped"
        loop.call_soon_threadsafe(stopped.set_result, None)
        return thread

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop, stopped: "asyncio.Future[None]") -> None:
        asyncio.set_event_loop(loop)
        try:
            run_until_stopped(loop, stopped)
            loop.run_until_complete(_cancel_all())  # Other threads may wait for calls.
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Start a coroutine in the loop's thread and return the future of its result."""
        try:
            forks.check()
            with self._lock:  # Work that is submitted before the stop is cancelled by it.
                self._check_not_over()
                if self._loop is None:
                    raise ClosedError("the client is closed or not started; use 'with' or start()")
                self.check_outside()
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop's thread and wait for it. An interrupt cancels it.

        Raises ClosedError also if the last client is closed meanwhile.
        """
        future = None
        try:
            future = self.submit(work)
            return future.result()
        except concurrent.futures.CancelledError:
            text = "the client was closed during the call; connect again"
            raise ClosedError(text, outcome=Outcome.UNKNOWN) from None
        except BaseException as raised:
            if future is None:
                raise
            if not future.cancel() and (error := future.exception()) not in (None, raised):
                raise raised from error  # Interrupted as the call failed: only here is its error.
            raise

    def check_outside(self) -> None:
        """Raise InvalidRequestError in the loop's thread itself, where waiting would never end,
        and ClosedError in a fork, where there is no such thread."""
        forks.check()
        if threading.current_thread() is self._thread:
            raise InvalidRequestError(
                "a blocking call from within a callback would wait for itself; hand it to a "
                "thread of its own",
                code="client.blocking_call",
            )

    def call_plain(self, function: Callable[[], _T]) -> _T:
        """Run a function in the loop's thread and wait for it."""

        async def work() -> _T:
            return function()

        return self.call(work())


def run_until_stopped(loop: asyncio.AbstractEventLoop, stopped: "asyncio.Future[None]") -> None:
    """Run a loop until stopped, also if a callback of a program raises: other calls wait in it.

    SystemExit and KeyboardInterrupt pass through asyncio; the callback's task keeps them for its
    waiter.
    """
    while not stopped.done():
        try:
            loop.run_until_complete(stopped)
        except BaseException:  # noqa: BLE001 - a thread has no caller to raise it to.
            _log.exception("a callback tried to end the thread of all blocking clients")


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


loop_thread: Final = LoopThread()
at_end(loop_thread.end)  # Named later than `unasked`, so it comes before the warning.
