"""The real Toxiproxy server as a process, and proxies on it.

Owns the process, its port and its counters; must not know what is behind a proxy. There is one
server per run: the client library keeps its address class-wide. Ports of proxies are taken below
the range of outgoing connections, because a disabled proxy gives its port up.
"""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

from chaos.errors import ChaosError, NotPossibleHereError
from deploy.cache import NotInstalledError, make
from deploy.local_process import free_ports

HOST: Final = "127.0.0.1"
UPSTREAM: Final = "upstream"
"""Bytes from the dialler to the dialled."""
DOWNSTREAM: Final = "downstream"
BOTH: Final = (UPSTREAM, DOWNSTREAM)
_START_TIMEOUT_S: Final = 30.0
_CALL_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02


def install() -> Path:
    """Return the server's program, built if need be. Raises NotPossibleHereError."""
    try:
        return make("toxiproxy") / "toxiproxy-server"
    except NotInstalledError as error:
        raise NotPossibleHereError(str(error)) from error


class Proxy:
    """One proxy: a port that leads to another."""

    def __init__(self, client: Any, name: str, port: int) -> None:
        self._client, self.name, self.port = client, name, port

    def add(self, kind: str, stream: str, **attributes: int) -> None:
        """Add a toxic; replace an existing one of this kind and stream."""
        self.remove(kind, stream)
        name = f"{kind}_{stream}"
        self._client.add_toxic(type=kind, stream=stream, name=name, attributes=attributes)

    def remove(self, kind: str, stream: str) -> None:
        """Remove a toxic; do nothing without one."""
        name = f"{kind}_{stream}"
        if name in self._client.toxics():
            self._client.destroy_toxic(name)

    def disable(self) -> None:
        """Close open connections, and refuse new ones."""
        self._client.disable()

    def enable(self) -> None:
        """Accept connections again."""
        self._client.enable()


class Toxiproxy:
    """The server. In a `with` it runs."""

    def __init__(self, program: Path, log: Path) -> None:
        self._program, self._log = program, log
        self._process: subprocess.Popen[bytes] | None = None
        self._server: Any = None
        self.port = 0
        self.version = ""

    def __enter__(self) -> Self:
        from toxiproxy import Toxiproxy as Server

        # Requests of this process to the server must not go through a proxy of another kind.
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = HOST
        self.port = free_ports(1)[0]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "-host", HOST, "-port", str(self.port), "-proxy-metrics"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LOG_LEVEL": "warn"},
            )
        self._server = Server()
        self._server.update_api_consumer(HOST, self.port)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (version := self._ask("/version")) is None:
            if time.monotonic() >= deadline or self._process.poll() is not None:
                self._end()
                raise ChaosError(
                    "Toxiproxy does not answer",
                    f"its process ended with {self._process.poll()}",
                    f"read {self._log}",
                )
            time.sleep(_POLL_S)
        self.version = str(json.loads(version)["version"])
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def create(self, name: str, upstream_port: int) -> Proxy:
        """Make a proxy that leads to a port of this machine."""
        port = free_ports(1, used=(upstream_port,))[0]
        proxy = self._server.create(
            upstream=f"{HOST}:{upstream_port}", name=name, listen=f"{HOST}:{port}"
        )
        return Proxy(proxy, name, port)

    def destroy_all(self) -> None:
        """Remove all proxies: the cluster behind them is gone."""
        self._server.destroy_all()

    def reset(self) -> None:
        """Enable all proxies, and remove all toxics."""
        self._server.reset()

    def byte_counts(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return by proxy and stream: bytes in and bytes out, of connections that ended.

        The server counts the two sides of a connection as each ends, so they differ for a moment.
        Raises ChaosError if it does not answer.
        """
        by_pair: dict[tuple[str, str], list[int]] = {}
        answer = self._ask("/metrics")
        if answer is None:
            raise ChaosError("Toxiproxy does not answer", "/metrics", f"read {self._log}")
        for line in answer.decode().splitlines():
            for at, name in enumerate(("received", "sent")):
                if line.startswith(f"toxiproxy_proxy_{name}_bytes_total{{"):
                    labels, _, value = line.partition("{")[2].rpartition("} ")
                    fields = dict(label.split("=", 1) for label in labels.split(","))
                    key = (fields["proxy"].strip('"'), fields["direction"].strip('"'))
                    by_pair.setdefault(key, [0, 0])[at] += int(float(value))
        return {key: (counts[0], counts[1]) for key, counts in by_pair.items()}

    def _ask(self, path: str) -> bytes | None:
        try:
            with urllib.request.urlopen(
                f"http://{HOST}:{self.port}{path}", timeout=_CALL_TIMEOUT_S
            ) as answer:
                data: bytes = answer.read()
                return data
        except (OSError, urllib.error.URLError):
            return None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
