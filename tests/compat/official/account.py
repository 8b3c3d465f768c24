"""What became of the messages of one run, from the lines of its two programs.

Owns the judgement; must not know a process or a cluster.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

KINDS: Final = ("ordered", "ordinary", "delayed", "transactional")
GROUPS: Final = ("simple", "simple-orderly", "push", "push-orderly")
LANE_COUNT: Final = 10
EARLY_MS_MAX: Final = 1_000
"""The client for Python cuts the time of delivery to a whole second."""
Event = Mapping[str, Any]


class Account(NamedTuple):
    """The sums of one client."""

    acked: dict[str, int]
    """Of each kind, what was rolled back included."""
    lost: int
    """Acknowledged, not rolled back, and not received by one of the consumer groups."""
    leaked: int
    """Rolled back and received."""
    doubled: int
    """Deliveries of a message to a group that had it already: at least once is what is promised."""
    out_of_order: int
    """First deliveries of an ordered message behind a later one of its message group."""
    early: int
    """Delayed messages before their time."""
    pause_ms: int
    """The longest time between two acknowledgements of one message group."""
    calm_pause_ms: int
    """The longest of them before the leader was killed: what the machine itself makes of a send."""
    failed: int
    """Errors that the application was told, sending and receiving."""


def account(
    sent: Sequence[Event],
    received: Sequence[Event],
    *,
    killed_at: int,
    groups: Sequence[str] = GROUPS,
    ordered_groups: Sequence[str] = GROUPS,
) -> Account:
    """Compare what the producer and the consumers of these groups said.

    The leader was killed after `killed_at` events of the producer. Only `ordered_groups` have to
    keep the order.
    """
    acks = [event for event in sent if event["event"] == "acked"]
    deliveries = [event for event in received if event["event"] == "received"]
    kept = {_body(ack) for ack in acks if ack["kept"]}
    # An attempt that failed may be stored, too, and its time to be delivered is an earlier one.
    tried = {event["what"].removeprefix("send ") for event in sent if event["event"] == "failed"}
    due = {_body(ack): ack["due_ms"] for ack in acks if ack["due_ms"] and _body(ack) not in tried}
    dropped = {_body(ack) for ack in acks if not ack["kept"]}
    had: dict[str, set[str]] = {group: set() for group in groups}
    last: dict[tuple[str, int], int] = {}
    doubled = out_of_order = early = leaked = 0
    for delivery in deliveries:
        group, body = delivery["group"], delivery["body"]
        if body in had[group]:
            doubled += 1
            continue
        had[group].add(body)
        leaked += body in dropped
        early += delivery["now_ms"] < due.get(body, 0) - EARLY_MS_MAX
        kind, number = body.split(":")
        if kind == "ordered" and group in ordered_groups:
            lane = (group, int(number) % LANE_COUNT)
            out_of_order += last.get(lane, -1) > int(number)
            last[lane] = max(last.get(lane, -1), int(number))
    return Account(
        acked={kind: sum(ack["kind"] == kind for ack in acks) for kind in KINDS},
        lost=sum(len(kept - found) for found in had.values()),
        leaked=leaked,
        doubled=doubled,
        out_of_order=out_of_order,
        early=early,
        pause_ms=longest_pause_ms(acks),
        calm_pause_ms=longest_pause_ms(e for e in sent[:killed_at] if e["event"] == "acked"),
        failed=sum(e["event"] == "failed" for events in (sent, received) for e in events),
    )


def longest_pause_ms(acks: Iterable[Event]) -> int:
    """Return the longest time that a message group waited for its next acknowledgement."""
    last: dict[int, int] = {}
    longest = 0
    for ack in acks:
        if ack["kind"] == "ordered":
            lane = ack["number"] % LANE_COUNT
            longest = max(longest, ack["at_ms"] - last.get(lane, ack["at_ms"]))
            last[lane] = ack["at_ms"]
    return longest


def _body(ack: Event) -> str:
    return f"{ack['kind']}:{ack['number']}"
