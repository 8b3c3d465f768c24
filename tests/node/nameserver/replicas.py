"""Clusters of real name server replicas for tests: processes, or in the test's own event loop."""

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from deploy.local_process import free_ports
from node.config.nameserver import NameServerSettings
from node.nameserver.directory.directory import Command, put_pair_command
from node.nameserver.replica.replicated import NameServer
from tests.patience import PATIENCE_S, wait_for

TIMEOUT_MS = 20_000
_ROOT = Path(__file__).resolve().parents[3]


def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody else is given."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


class ReplicaProcess:
    """A replica in a process of its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._answers: dict[int, Any] = {}
        self._number = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        program = [sys.executable, "-m", "tests.node.nameserver.replica_process"]
        self._answers = {}
        self._process = subprocess.Popen(
            [*program, json.dumps(self.settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        self.end(0)

    def begin(self, do: str, **request: Any) -> int:
        """Send a request and return its number."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._number += 1
        text = json.dumps({"number": self._number, "do": do, **request})
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        return self._number

    def end(self, number: int) -> Any:
        """Wait for the answer of a request."""
        assert self._process is not None
        assert self._process.stdout is not None
        while number not in self._answers:
            answer = json.loads(self._process.stdout.readline())  # Fails when the process ends.
            self._answers[answer["number"]] = answer["answer"]
        return self._answers.pop(number)

    def ask(self, do: str, **request: Any) -> Any:
        """Send a request and wait for the answer."""
        return self.end(self.begin(do, **request))

    def change(self, command: Command, timeout_ms: int = TIMEOUT_MS, **more: Any) -> Any:
        """Carry out a command."""
        return self.ask("change", command=command, timeout_ms=timeout_ms, **more)

    def put(self, key: str, value: str = "v", **more: Any) -> Any:
        """Put a pair of the namespace `ns`."""
        return self.change(put_pair_command("ns", key, value), **more)

    def status(self) -> dict[str, Any]:
        """Its status."""
        return dict(self.ask("status"))

    def pair_keys(self) -> set[str]:
        """The keys of the namespace `ns`."""
        return set(self.ask("snapshot")["pairs"].get("ns", {}))

    def memory_peak_size_bytes(self) -> int:
        """The most memory that it ever had, as the kernel counts it."""
        assert self._process is not None
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in text.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def hangs_up_on(self, data: bytes) -> bool:
        """Send a frame to its port as a stranger; return whether it closes the connection."""
        host, _, port = self.settings["address"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as link:
            try:
                link.sendall(struct.pack("i", len(data)) + data)
                return not link.recv(1)
            except ConnectionError:
                return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def settings_of(directory: Path, count: int = 3, password: str | None = None) -> list[Any]:
    """Settings of replicas on loopback, the last one with the largest address."""
    members = sorted(free_addresses(count))
    return [
        {
            "address": member,
            "members": members,
            "directory": str(directory / f"replica{number}"),
            "password": password,
        }
        for number, member in enumerate(members)
    ]


@contextmanager
def processes(directory: Path, password: str | None = None) -> Iterator[list[ReplicaProcess]]:
    """Three replicas as processes; ended by their ids."""
    replicas = [ReplicaProcess(settings) for settings in settings_of(directory, 3, password)]
    try:
        for replica in replicas:
            replica.start()
        yield replicas
    finally:
        for replica in replicas:
            replica.kill()


def leader_of(replicas: list[ReplicaProcess]) -> ReplicaProcess:
    """Wait for a leader among replicas that run."""

    def leader() -> ReplicaProcess | None:
        return next((each for each in replicas if each.status()["state"] == "leader"), None)

    leading = wait_for("a leader", leader)
    assert leading is not None
    return leading


def counting(replicas: list[ReplicaProcess]) -> None:
    """Wait until all count, that is lead or follow."""
    wanted = ["follower"] * (len(replicas) - 1) + ["leader"]
    wait_for("all", lambda: sorted(each.status()["state"] for each in replicas) == wanted)


def level(replicas: list[ReplicaProcess], keys: set[str]) -> None:
    """Wait until all have these keys and no others."""
    wait_for(f"{keys} everywhere", lambda: all(each.pair_keys() == keys for each in replicas))


@asynccontextmanager
async def servers(
    directory: Path, count: int = 3, password: str | None = None
) -> AsyncIterator[list[NameServer]]:
    """Replicas on the loop of the test."""
    made = [
        NameServer(NameServerSettings(**settings))
        for settings in settings_of(directory, count, password)
    ]
    try:
        for server in made:
            await server.start()
        yield made
    finally:
        for server in made:
            await server.stop()
