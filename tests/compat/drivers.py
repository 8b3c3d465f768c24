"""The official clients as processes that do what a test tells them.

Owns their start, the lines between, and their end. One call at a time for each process.
"""

import base64
import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

from tests import missing
from tests.patience import PATIENCE_S

HERE: Final = Path(__file__).resolve().parent


class CallFailedError(Exception):
    """The client raised an error; its name and text are in the message."""


class Client:
    """One process with the client of one language. Use it as a context manager."""

    def __init__(
        self,
        language: str,
        endpoint: str,
        home: Path,
        *,
        key: str = "",
        secret: str = "",
        authority: Path | None = None,
    ) -> None:
        """`authority` is whom the client trusts; it then uses TLS."""
        environment = {**os.environ, "HOME": str(home)}
        if authority is not None:
            environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(authority)
            environment["COMPAT_TLS"] = "1"
        installed = missing.installed(f"client-{language}")
        if language == "python":
            program = [str(installed / "bin/python"), str(HERE / "python_driver.py")]
        else:
            program = ["node", str(HERE / "node_driver.js")]
            environment["NODE_PATH"] = str(installed / "node_modules")
        home.mkdir(parents=True, exist_ok=True)
        self._log = (home / f"{language}.log").open("ab")
        self._process = subprocess.Popen(
            [*program, endpoint, key, secret],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            cwd=home,
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self, do: str, **fields: Any) -> None:
        """Tell the process what to do; `answer` waits for it."""
        assert self._process.stdin is not None
        body = fields.get("body")
        if isinstance(body, bytes):
            fields["body"] = base64.b64encode(body).decode()
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return what the last call returned. Raises CallFailedError."""
        line = self._answers.get(timeout=PATIENCE_S)
        if not line:
            raise CallFailedError(f"the client ended with {self._process.wait()}")
        answer = json.loads(line)
        if not answer["ok"]:
            raise CallFailedError(answer["error"])
        return answer["result"]

    def call(self, do: str, **fields: Any) -> Any:
        """Have the client do something; return what it returned. Raises CallFailedError."""
        self.begin(do, **fields)
        return self.answer()

    def stop(self) -> None:
        """End the client as an application would, or the process if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if self._process.poll() is None:
                self.begin("close")
                self._process.stdin.close()
                self._process.wait(PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            self._reader.join()
            self._process.stdout.close()
            self._log.close()


def body_of(message: dict[str, Any]) -> bytes:
    """Return the body of a message that a client told of."""
    return base64.b64decode(message["body"])
