"""A long run logs each command, ends one that hangs with its children, and its seeds are fresh."""

import signal
from pathlib import Path

import psutil
import pytest

from tests import hours

HANG = (
    "import subprocess, sys, signal; wait = 'import signal; signal.pause()'; "
    "print(subprocess.Popen([sys.executable, '-c', wait]).pid, flush=True); signal.pause()"
)


@pytest.mark.long
def test_commands_are_logged_and_one_that_hangs_is_ended(tmp_path: Path) -> None:
    turn = [["-c", "pass"], ["-c", "print('seed 7: I7'); exit(1)"], ["-c", HANG]]
    assert hours.run(1e-9, 1, tmp_path, lambda _seed: turn) == 0
    assert hours.run(5.0, 1, tmp_path, lambda _seed: turn, limit_s=5.0) == 2
    passed, failed, ended = (tmp_path / "hours.log").read_text().splitlines()
    assert " passed " in passed
    assert " failed: 1 " in failed
    assert " ended after 5 s " in ended
    assert Path(failed.rsplit(maxsplit=1)[1]).read_text() == "seed 7: I7\n"
    assert not psutil.pid_exists(int(Path(ended.rsplit(maxsplit=1)[1]).read_text()))


@pytest.mark.long
def test_an_interrupt_ends_the_run(tmp_path: Path) -> None:
    """As Ctrl-C at a terminal: to the run, and not to its command."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = "import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()"
    try:
        with pytest.raises(KeyboardInterrupt):
            hours.run(60.0, 1, tmp_path, lambda _seed: [["-c", interrupt]])
    finally:
        signal.signal(signal.SIGINT, before)
    assert " interrupted " in (tmp_path / "hours.log").read_text()


def test_no_command_comes_twice() -> None:
    turns = [tuple(command) for seed in range(50) for command in hours.commands(seed)]
    assert len(set(turns)) == len(turns)
