"""Commands that look again: `--watch`, and `--until` with its time-out."""

import json
import os
import pty
import signal
from typing import IO

from deploy.local import LocalCluster
from tests.patience import PATIENCE_S
from tests.qlog.running import Qlog


def test_a_condition_that_holds_ends_the_wait(qlog: Qlog, shared_cluster: LocalCluster) -> None:
    at = ("--dir", shared_cluster.directory)
    for condition in ("healthy", "leader"):
        assert qlog.json("cluster", "status", "--until", condition)["leader_id"]
        assert len(qlog.json("local", "status", *at, "--until", condition)) == 3


def test_a_wait_ends_with_what_it_waits_for(qlog: Qlog, topic: str) -> None:
    late = f"{topic}-late"
    waiter = qlog.start("topic", "describe", late, "--watch", "--until", "exists")
    _line_of(waiter.stderr, "error: ")  # It has looked, and there was none.
    qlog("topic", "create", late)
    stdout, _ = waiter.communicate(timeout=PATIENCE_S)
    assert (waiter.returncode, late.encode() in stdout) == (0, True)


def test_a_wait_that_is_too_long_ends_with_its_own_code(qlog: Qlog, topic: str) -> None:
    words = ("--until", "exists", "--timeout", "1ms")
    late = qlog("topic", "describe", "none", *words, code=6).stderr
    assert "'exists' does not hold after 1 ms" in late
    assert "why: topic 'none' does not exist" in late, "the last look had no time"
    qlog("produce", topic, "--file", __file__)
    qlog("group", "reset", "g", "--topic", topic, "--to", "end", code=4)
    qlog("consume", topic, "--group", "g", "--max-count", 1)
    lagging = ("group", "describe", "g", "--until", "lag=0")
    assert "'lag=0' does not hold" in qlog(*lagging, "--timeout", "1ms", code=6).stderr
    qlog("group", "reset", "g", "--topic", topic, "--to", "end")
    assert qlog.json(*lagging)["lag_count"] == 0
    qlog("group", "describe", "none", "--until", "lag=0", code=4)


def test_a_pipe_gets_a_block_a_look_and_a_terminal_one_that_is_drawn_again(
    qlog: Qlog, topic: str
) -> None:
    with qlog.start("topic", "list", "--watch", "-o", "jsonl") as piped:
        for _ in range(2):
            assert topic in json.loads(_line_of(piped.stdout, f'"{topic}"'))["topic"]
        piped.send_signal(signal.SIGINT)
        assert piped.wait(PATIENCE_S) == 0
    ours, theirs = pty.openpty()
    with qlog.start("topic", "list", "--watch", stdout=theirs) as shown, open(ours, "rb") as screen:
        os.close(theirs)
        assert b"\033[H\033[2J" in _line_of(screen, "\033[H")
        shown.send_signal(signal.SIGINT)
        assert shown.wait(PATIENCE_S) == 0


def _line_of(stream: IO[bytes] | None, part: str) -> bytes:
    assert stream is not None
    return next(line for line in iter(stream.readline, b"") if part.encode() in line)
