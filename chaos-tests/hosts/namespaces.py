"""The place of one run: its own mounts and network, a directory, and a name that says who owns it.

Owns the way in and out. A run lives in a mount namespace and a network namespace of its own: the
kernel removes its hosts, devices, mounts and loop devices when its last process has ended, however
that was. What the kernel does not remove (a directory and control groups) carries the name of the
run; the next run removes those whose owner is dead. Must not know what is built in there.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from chaos.errors import ChaosError

from quorumlog.local_cluster import started_at

COMMAND_TIMEOUT_S: Final = 20
UNSHARE: Final = ("unshare", "--mount", "--net", "--propagation", "private", "--")
"""Own mounts, which no other process sees, and an own network, which reaches no other."""
HOSTS_FILE: Final = Path("/etc/hosts")
_NAME: Final = re.compile(r"ql-(\d+)-(\d+)")


def run_name(pid: int) -> str:
    """Return the name of what a process owns: with its number and the moment when it started."""
    return f"ql-{pid}-{started_at(pid).rpartition(':')[2]}"


def is_stale(name: str) -> bool:
    """Whether something has the name of a run that has ended. Other names are never stale."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    try:
        return run_name(int(match[1])) != name
    except ProcessLookupError:
        return True


def stale_in(directories: Iterable[Path]) -> list[Path]:
    """Return what ended runs have left in these directories."""
    return [
        found
        for directory in directories
        if directory.is_dir()
        for found in sorted(directory.iterdir())
        if found.is_dir() and is_stale(found.name)
    ]


def remove_stale_directories(parent: Path) -> None:
    """Remove the directories that ended runs have left: their mounts went with them."""
    for left in stale_in([parent]):
        shutil.rmtree(left)


def command(*words: str, text: str = "") -> str:
    """Run a command of the system and return its output. Raises ChaosError."""
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, check=False,
            timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
    except FileNotFoundError as error:
        why = f"there is no command {words[0]}"
        raise ChaosError(" ".join(words), why, f"install {words[0]}") from error
    except subprocess.TimeoutExpired as error:
        why = f"no end after {COMMAND_TIMEOUT_S} s"
        raise ChaosError(" ".join(words), why, "look at the machine's kernel log") from error
    if done.returncode != 0:
        why = (done.stderr.strip() or f"status {done.returncode}").splitlines()[0]
        raise ChaosError(" ".join(words), why, "chaos-tests/run --hosts --abilities shows more")
    return done.stdout


def enter(arguments: Sequence[str]) -> NoReturn:
    """Become the same command in namespaces of its own. Does not return."""
    words = [*UNSHARE, sys.executable, "-P", "-m", "chaos", "--inside", *arguments]
    os.execvp(words[0], words)


class RunPlace:
    """The directory of a run, and its own view of /etc/hosts. In a `with` it exists.

    Only inside of `enter`: outside, the machine's own file would be hidden.
    """

    def __init__(self, parent: Path) -> None:
        """`parent` holds the directories of all runs."""
        self.name: Final = run_name(os.getpid())
        self.directory: Final = parent / self.name
        self.hosts_file: Final = self.directory / "hosts"

    def __enter__(self) -> "RunPlace":
        if os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{os.getppid()}/ns/mnt"):
            why = "this process has the mounts of the one that started it"
            raise ChaosError("a run on hosts", why, "start it with chaos-tests/run --hosts")
        remove_stale_directories(self.directory.parent)
        self.directory.mkdir(mode=0o700)
        self.hosts_file.write_text(HOSTS_FILE.read_text("utf-8"), "utf-8")
        command("mount", "--bind", str(self.hosts_file), str(HOSTS_FILE))
        return self

    def __exit__(self, *_: object) -> None:
        command("umount", str(HOSTS_FILE))
        # A namespace or a disk that is still mounted here, by a process about to end, goes later.
        with contextlib.suppress(OSError):
            shutil.rmtree(self.directory)
