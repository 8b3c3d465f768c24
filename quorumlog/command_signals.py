"""Signals of commands: each ends in order, since it may have started nodes or hold offsets.

Owns what a command does about the dispositions that its parent left. Nodes have `stop_signals`.
"""

import signal
import threading
from types import FrameType


def take_signals() -> None:
    """Let SIGTERM and a terminal that closes end this command as Ctrl-C does, unless they are
    ignored, and undo what a parent left: with SIGCHLD ignored each child has ended with 0, and a
    blocked signal ends nothing."""
    if threading.current_thread() is not threading.main_thread():  # Others may not set it.
        return
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ours = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # Of a script's background jobs.
        signal.default_int_handler(number, frame)
    signal.raise_signal(signal.SIGINT)
