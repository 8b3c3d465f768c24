"""A run of a target in a process of its own, with a limit of memory, watched from outside.

Owns the process, the file in which it notes the input in hand, and what its death means: an input
that ends the interpreter, that hangs in one line, or that takes more address space than there is
becomes a crash like any other. Must not know how inputs are made.
"""

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from campaign.fuzz.engine import ROOT, Crash, FuzzReport

MEMORY_MIB: Final = 2_048
"""Address space of the process. Imports take less than half of it."""
SILENCE_S_MAX: Final = 60.0
"""Time that one input may take, on the busiest machine."""
_START_S_MAX: Final = 300.0
"""Time before the first input: imports and examples."""
_POLL_S: Final = 2.0
_NUMBER: Final = struct.Struct(">q")
_INPUT_SIZE_BYTES_MAX: Final = 1 << 20


def limit_memory(mebibytes: int) -> None:
    """Limit the address space of this process."""
    size_bytes = mebibytes << 20
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))


class CurrentInput:
    """The input in hand, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)

    def note(self, number: int, data: bytes) -> None:
        """Note an input before it runs."""
        self._file.seek(0)
        self._file.write(_NUMBER.pack(number) + _NUMBER.pack(len(data)) + data)


def current_of(path: Path) -> tuple[int, bytes]:
    """Return the number of the input that was noted last, and its bytes; -1 before the first."""
    found = path.read_bytes()
    if len(found) < 2 * _NUMBER.size:
        return -1, b""
    number, size_bytes = _NUMBER.unpack_from(found)[0], _NUMBER.unpack_from(found, _NUMBER.size)[0]
    return number, found[2 * _NUMBER.size :][: min(size_bytes, _INPUT_SIZE_BYTES_MAX)]


def run_apart(
    target: str,
    seed: int,
    count: int,
    *,
    memory_mib: int = MEMORY_MIB,
    silence_s: float = SILENCE_S_MAX,
    registry: str = "campaign.fuzz.targets",
    with_atheris: bool = False,
) -> FuzzReport:
    """Run `count` inputs of a target in a process of its own; return its report.

    `registry` is the module whose TARGETS has the target. With `with_atheris` its search takes the
    place of ours. A process that dies or hangs gives a
    report with one crash, the input that it had in hand.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        noted, said = Path(directory, "current"), Path(directory, "report")
        noted.touch()
        options = ["--seed", seed, "--count", count, "--memory", memory_mib]
        options += ["--current", noted, "--report", said, "--registry", registry]
        worker = "atheris_worker" if with_atheris else "worker"
        command = [sys.executable, "-m", f"campaign.fuzz.{worker}", target, *map(str, options)]
        # Also what a target leaves there goes with the directory, however the process ends.
        environment = {**os.environ, "TMPDIR": directory}
        with Path(directory, "log").open("w+b") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            try:
                is_silent = _wait(process, noted, silence_s)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            if process.returncode == 0 and not is_silent:
                return report_of(json.loads(said.read_text("utf-8")))
            log.seek(0)
            last_words = log.read()[-1_000:].decode("utf-8", "replace")
        number, data = current_of(noted)
    ended = f"hangs: no end within {silence_s:.0f} s" if is_silent else "ends the process"
    detail = f"exit code {process.returncode}: {last_words}"
    crash = Crash(target, ended, detail, data, number)
    return FuzzReport(target, seed, input_count=max(0, number), crashes=[crash])


def _wait(process: "subprocess.Popen[bytes]", noted: Path, silence_s: float) -> bool:
    """Wait for the end of the process; return whether it was given up as silent."""
    number, silent_s = -1, 0.0
    while True:
        try:
            process.wait(min(_POLL_S, silence_s))
            return False
        except subprocess.TimeoutExpired:
            found = current_of(noted)[0]
            silent_s = 0.0 if found != number else silent_s + min(_POLL_S, silence_s)
            number = found
            if silent_s >= (silence_s if number >= 0 else _START_S_MAX):
                return True


def document_of(report: FuzzReport) -> dict[str, Any]:
    """Return a report as JSON; bytes are hexadecimal."""
    found = asdict(report)
    for crash in found["crashes"]:
        crash["data"] = crash["data"].hex()
    return found


def report_of(document: dict[str, Any]) -> FuzzReport:
    """Return the report that `document_of` wrote."""
    crashes = [
        Crash(**{**crash, "data": bytes.fromhex(crash["data"])}) for crash in document["crashes"]
    ]
    return FuzzReport(**{**document, "crashes": crashes})
