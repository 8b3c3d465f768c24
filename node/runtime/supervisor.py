"""Messages to the service manager that started the process: the datagrams of sd_notify.

Owns the socket that `NOTIFY_SOCKET` names, and the rhythm of `WATCHDOG_USEC`. A task of the event
loop sends them, so that a loop that stands still feeds no watchdog. Must not know a node.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

_RETRY_S: Final = 1.0
"""Pause after a message that the manager's socket did not take: it is full, or not there."""
_log: Final = structlog.get_logger(component="supervisor")


async def keep_informed(state: Callable[[], str], changed: asyncio.Event) -> None:
    """Send `state()`, lines of NAME=VALUE, with each change of it and in time for the watchdog.

    Returns at once where no manager waits for messages.
    """
    name, limit_us = os.environ.get("NOTIFY_SOCKET", ""), os.environ.get("WATCHDOG_USEC", "")
    if not name:
        return
    own = str(os.getpid())
    is_watched = limit_us.isdecimal() and os.environ.get("WATCHDOG_PID", own) == own
    beat_s = int(limit_us) / 2e6 if is_watched else None
    # A first @ stands for the zero byte of the abstract names, which no file has.
    address = f"\0{name[1:]}" if name.startswith("@") else name
    has_warned = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own_end:
        own_end.setblocking(False)
        while True:
            changed.clear()
            pause_s = beat_s
            try:
                own_end.sendto(f"{state()}\nWATCHDOG=1".encode(), address)
            except OSError as error:
                pause_s = min(beat_s or _RETRY_S, _RETRY_S)
                if not has_warned:
                    _log.warning("the service manager is deaf", socket=name, error=str(error))
                has_warned = True
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), pause_s)
