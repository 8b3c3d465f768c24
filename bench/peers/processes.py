"""The processes of a peer: started with a log, ended by their ids, started again as they were.

Owns signals and exit, and what peers of processes have in common; must not know what runs.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.peers import remote
from bench.peers.peer import ConsumeResult, PeerFailedError, PeerLoad, ProduceResult
from deploy.local_process import is_free

START_DEADLINE_S = 600.0
"""Limit of the time until nodes serve. Nodes with gigabytes may read all of them first."""
_STOP_DEADLINE_S = 20.0
_LAST_WORDS_SIZE_BYTES = 400
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class _Command:
    words: tuple[str, ...]
    environment: Mapping[str, str]


class Processes:
    """Named processes in one directory, each in a session of its own."""

    def __init__(self, directory: str) -> None:
        """Create the set; no process runs yet."""
        self.directory = directory
        self._commands: dict[str, _Command] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a command under a name; its output goes to `<name>.log`."""
        assert name not in self._commands, f"{name} was started before"
        self._commands[name] = _Command(tuple(words), {**os.environ, **(environment or {})})
        self.start_again(name)

    def start_again(self, name: str) -> None:
        """Start the command of that name as it was."""
        assert name not in self._running, f"{name} runs"
        command = self._commands[name]
        with open(self.log_path(name), "ab") as log:
            self._running[name] = subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(command.environment),
                cwd=self.directory,
                start_new_session=True,
            )

    def log_path(self, name: str) -> str:
        """Return the path of the output of a process."""
        return os.path.join(self.directory, f"{name}.log")

    def pids(self) -> dict[str, int]:
        """Return the ids of the running processes."""
        return {name: process.pid for name, process in self._running.items()}

    def kill(self, name: str) -> float:
        """SIGKILL a process; return the moment before."""
        process = self._running.pop(name)
        moment_s = time.monotonic()
        process.kill()
        process.wait()
        return moment_s

    def stop(self, *names: str) -> None:
        """SIGTERM these, by default all; SIGKILL those that do not end."""
        chosen = {name: self._running.pop(name) for name in names or tuple(self._running)}
        for process in chosen.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_DEADLINE_S
        for process in chosen.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill_all(self) -> None:
        """SIGKILL all: their files are not needed any more."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def check_alive(self) -> None:
        """Raise PeerFailedError with the end of its log if a process has ended on its own."""
        for name, process in self._running.items():
            if process.poll() is not None:
                said = self._last_words(name)
                raise PeerFailedError(f"{name} ended with {process.returncode}: {said}")

    async def until(
        self, act: Callable[[], Awaitable[object]], what: str, *not_yet: type[Exception]
    ) -> None:
        """Repeat an action until it returns anything but False; some errors mean that, too.

        Raises PeerFailedError when it takes too long, or when a process ends.
        """
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            self.check_alive()
            said = ""
            try:
                if await act() is not False:
                    return
            except not_yet as error:
                said = f": {error}"
            if time.monotonic() > deadline:
                raise PeerFailedError(f"{what} within {START_DEADLINE_S} s{said}")
            await asyncio.sleep(_POLL_S)

    async def until_listening(self, port: int, name: str) -> None:
        """Wait until a port is taken. Raises PeerFailedError."""

        async def is_taken() -> bool:
            return not is_free(port)

        await self.until(is_taken, f"{name} does not listen")

    async def restart(self, *names: str) -> float:
        """Stop these in order, by default all, and start them; return the moment of the start."""
        names = names or tuple(self._commands)
        await asyncio.to_thread(self.stop, *(name for name in names if name in self._running))
        moment_s = time.monotonic()
        for name in names:
            self.start_again(name)
        return moment_s

    def _last_words(self, name: str) -> str:
        with open(self.log_path(name), "rb") as log:
            log.seek(max(0, os.path.getsize(log.name) - _LAST_WORDS_SIZE_BYTES))
            return log.read().decode("utf-8", "replace").strip() or "it said nothing"


class ProcessPeer:
    """The part of a peer that its processes are."""

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        super().__init__()  # Of another peer, of which the class is one as well.
        self._started: Processes | None = None

    @property
    def _processes(self) -> Processes:
        assert self._started is not None, "not started"
        return self._started

    def pids(self) -> dict[str, int]:
        """Return the ids of the running processes."""
        return self._started.pids() if self._started is not None else {}

    async def stop(self) -> None:
        """End all processes."""
        if self._started is not None:
            self._started.kill_all()


class RemotePeer(ProcessPeer):
    """A peer whose client is a process as well, which this one asks over a port."""

    _control_port = 0

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Run the load in the client."""
        return await remote.produce(self._control_port, load)

    async def consume(self) -> ConsumeResult:
        """Read the first topic in the client."""
        return await remote.consume(self._control_port)
