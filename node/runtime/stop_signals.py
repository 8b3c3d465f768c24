"""The signals that stop a process in order.

Owns the list; must not know what a stop does. A terminal that closes sends SIGHUP, which ends a
process as a crash would unless it is handled; under `nohup` it is ignored, and stays so.
"""

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, SIGINT and, unless this process ignores it, SIGHUP. They reach this process
    from now on, also if its parent had blocked them: a mask is inherited."""
    signals = (signal.SIGTERM, signal.SIGINT)
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = signals if is_ignored else (*signals, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    return handled
