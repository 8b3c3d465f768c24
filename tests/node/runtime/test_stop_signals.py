"""SIGTERM and a terminal that closes stop nodes and commands in order, unless they are ignored."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from node.runtime.fail_stop import stop_signals
from quorumlog.command_errors import take_signals

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = {one: signal.getsignal(one) for one in SIGNALS}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_a_signal_stops_a_node_and_interrupts_a_command(interrupt: Any, number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, interrupt)  # Ignored by background jobs of a script.
    take_signals()
    assert number in stop_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_a_hang_up_under_nohup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    take_signals()
    assert signal.SIGHUP not in stop_signals()
    signal.raise_signal(signal.SIGHUP)


def test_a_mask_of_the_parent_keeps_no_signal_away() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    stop_signals()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
