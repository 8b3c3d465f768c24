"""Addresses of tests: the loopback address of this process, and the two parts of any.

Ports of 127.0.0.1 go to any process that asks for one, so a fake node that stops and starts again
on its port meets "Address already in use". Tests that close a port and open it again use this
address for all that they open.
"""

import os
import sys


def _own_address() -> str:
    """Return an address that no other process of this machine uses; elsewhere than on Linux
    127.0.0.1 is the only one.
    """
    if sys.platform != "linux":
        return "127.0.0.1"
    process = os.getpid()  # At most 22 bits.
    return f"127.{64 + (process >> 16)}.{process >> 8 & 255}.{process & 255}"


HOST = _own_address()


def host_and_port(address: str) -> tuple[str, int]:
    """Return what a socket takes for `host:port`."""
    host, _, port = address.rpartition(":")
    return host, int(port)
