"""The port of the console: a process of its own, which begins with the first browser.

Owns the port and the process; must not know a page. Until a browser calls, there is nothing but a
socket that listens. The process is `qlog console`, a client of this node like any other. It ends
when no page was asked for in a while, and with the node, whose pipe it holds.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

import structlog

from node.config.types import Address
from node.runtime.logs.line_budget import LIBRARY_LINES

IDLE_MS: Final = 600_000
"""Time without a request after which the process ends."""
_PAUSE_S: Final = 5.0
"""Time after an end before the port starts another process."""
_READ_SIZE_BYTES: Final = 8 * 1024
_log: Final = structlog.get_logger(component="console")


class ConsoleDoor:
    """Starts the console of a node when a browser calls its port. Runs on the loop's thread."""

    def __init__(
        self,
        mode: str,
        server: str,
        environment: Mapping[str, str],
        page_file: int | None = None,
        idle_ms: int = IDLE_MS,
    ) -> None:
        """`server`: host:port of this node for clients. `environment`: what the console needs to
        get in, as the files of TLS. `page_file`: an open file with certificate and key of the
        pages; None: they are in clear text."""
        self._files = () if page_file is None else (page_file,)
        path = f"/dev/fd/{page_file}"
        tls = ("--tls-certificate", path, "--tls-key", path) if self._files else ()
        self._options = (*tls, "--idle-ms", str(idle_ms))
        self._mode, self._server = mode, server
        self._environment = {**os.environ, **environment}
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self.process: asyncio.subprocess.Process | None = None

    def open(self, address: Address) -> int:
        """Listen at an address; return the port. Raises OSError."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.create_server((address.host, address.port), family=family)
        self._socket.setblocking(False)
        self._wait()
        return int(self._socket.getsockname()[1])

    async def close(self) -> None:
        """Close the port, and end the process."""
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._socket.close()

    def _wait(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().add_reader(self._socket, self._begin)

    def _begin(self) -> None:
        assert self._socket is not None
        asyncio.get_running_loop().remove_reader(self._socket)
        self._task = asyncio.create_task(self._serve(self._socket), name="console")

    async def _serve(self, listening: socket.socket) -> None:
        """Run one process until it ends, then listen again."""
        fd = listening.fileno()
        command = [
            *(sys.executable, "-P", "-m", "qlog", "console", "--fd", str(fd)),
            *("--server", self._server, "--mode", self._mode, *self._options),
        ]
        try:
            self.process = process = await asyncio.create_subprocess_exec(
                *command,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(fd, *self._files),
            )
        except OSError as error:
            _log.error("the console does not start", error=str(error))
        else:
            _log.info("the console begins", pid=process.pid, mode=self._mode)
            try:
                await _log_lines(process)
                code = await process.wait()
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise
            _log.info("the console has ended", pid=process.pid, exit_code=code)
        await asyncio.sleep(_PAUSE_S)
        self._wait()


async def _log_lines(process: asyncio.subprocess.Process) -> None:
    """Log what a console says until it ends, within a budget. A stranger may have made it fail: its
    lines have no component, so none is an event of the node."""
    log, stream = structlog.get_logger(), process.stderr
    assert stream is not None
    while data := await stream.read(_READ_SIZE_BYTES):
        for line in data.decode("utf-8", "replace").splitlines():
            gone = LIBRARY_LINES.take("console")
            if gone is not None and line.strip():
                log.warning("the console says", line=line, lines_left_out=gone)
