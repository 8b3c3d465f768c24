"""A client on an event loop of its own, for generators that block: submit now, take results later.

Owns the thread; must not know what is asked. A connection is made where it is used, in a task of
Spark or in the planning process, and never pickled.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import quorumlog
from pipeline.errors import OptionError
from pipeline.options import TLS, ClusterAddress

_T = TypeVar("_T")


class Connection:
    """A started client. Use it in a `with`, or close it."""

    def __init__(self, cluster: ClusterAddress) -> None:
        """Connect. Raises OptionError for a TLS file that cannot be read, and QuorumlogError."""
        try:
            credentials = cluster.tls.credentials()
        except OSError as error:
            raise OptionError(
                f"{error.filename} cannot be read: {error.strerror}",
                f"files of {', '.join(TLS)} have to be on each machine where Spark runs a task",
            ) from error
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quorumlog-pipeline", daemon=True
        )
        self._thread.start()
        self.client = quorumlog.connect(
            cluster.servers,
            cluster_id=cluster.cluster_id,
            timeout_ms=cluster.timeout_ms,
            credentials=credentials,
        )
        try:
            self.call(self.client.start())
        except BaseException:
            self._stop()
            raise

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a coroutine and return the future of its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and wait for it; an interrupt cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the client and end its thread."""
        try:
            self.call(self.client.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
