"""Prints the table of requests of the remoting protocol, for docs/rocketmq.md.

Owns the form of the table. A test compares it with the handlers of the gateway.
"""

from collections.abc import Iterator

from node.rocketmq.remoting.protocol.codes import REFUSED, REQUEST_NAMES, SENT, ResponseCode


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| code | request | |"
    yield "|---|---|---|"
    for code in sorted(REQUEST_NAMES):
        answer = "sent to clients, not served" if code in SENT else "served"
        if code in REFUSED:
            answer = f"refused with {ResponseCode.NO_PERMISSION.name}: {REFUSED[code]}"
        yield f"| {code} | {REQUEST_NAMES[code]} | {answer} |"


if __name__ == "__main__":
    print("\n".join(table()))
