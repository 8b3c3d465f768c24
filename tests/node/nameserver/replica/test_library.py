"""What importing the library does to the process around it."""

import subprocess
import sys

from tests.patience import PATIENCE_S

PROGRAM = """
import socket
import node.nameserver.replica.replicated
print(socket.inet_ntop(socket.AF_INET, bytes([127, 0, 0, 1])))
"""


def test_addresses_can_be_printed_beside_the_library() -> None:
    """It replaces `socket.inet_ntop` by one for Windows; psutil and others then fail."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.stdout == "127.0.0.1\n", done.stderr
