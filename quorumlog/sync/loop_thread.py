"""One thread with an event loop, for programs without asyncio.

Owns the thread: the first user starts it, the last one stops it. Must not know what is called.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from quorumlog.cluster.forks import forks
from quorumlog.errors import ClosedError, InvalidRequestError, Outcome

_T = TypeVar("_T")

STOP_TIMEOUT_S: Final = 10
_log = logging.getLogger("quorumlog.sync")


class LoopThread:
    """The event loop of all clients; each client that is started counts as a user."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal handler of the same thread may call as well.
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped: asyncio.Future[None] | None = None  # Done when the thread shall end.

    def acquire(self) -> None:
        """Start the thread if it does not run."""
        forks.check()  # Before the lock, which another thread of the parent may have held.
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._stopped = self._loop.create_future()
                self._thread = threading.Thread(
                    target=self._run,
                    args=(self._loop, self._stopped),
                    name="quorumlog-sync",
                    daemon=True,
                )
                self._thread.start()

    def release(self) -> None:
        """Stop the thread after its last user."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            loop, thread, stopped = self._loop, self._thread, self._stopped
            self._loop = self._thread = self._stopped = None
        assert loop is not None, "released without having been acquired"
        assert thread is not None, "a loop without a thread"
        assert stopped is not None, "a loop that cannot be stopped"
        loop.call_soon_threadsafe(stopped.set_result, None)
        thread.join(STOP_TIMEOUT_S)

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
        future = self.submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            text = "the client was closed during the call; connect again"
            raise ClosedError(text, outcome=Outcome.UNKNOWN) from None
        except BaseException as raised:
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
