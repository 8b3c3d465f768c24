"""A terminal that closes stops processes in order, nodes and commands, unless it is ignored."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from node.runtime.stop_signals import stop_signals
from qlog import _hang_up_as_interrupt


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = {one: signal.getsignal(one) for one in (signal.SIGHUP, signal.SIGINT)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_a_hang_up_stops_a_node_and_interrupts_a_command(interrupt: Any) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, interrupt)  # Ignored by background jobs of a script.
    _hang_up_as_interrupt()
    assert signal.SIGHUP in stop_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)


def test_a_hang_up_under_nohup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _hang_up_as_interrupt()
    assert signal.SIGHUP not in stop_signals()
    signal.raise_signal(signal.SIGHUP)


def test_a_mask_of_the_parent_keeps_no_signal_away() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    stop_signals()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
