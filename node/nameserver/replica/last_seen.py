"""The time since this process last saw each broker, by a monotonic clock.

Owns one rule: silence is what this process observed. Brokers report with their own clocks, and
their clocks or ours may jump; a replica that judged by such clocks would find all brokers dead, or
one alive for years. So readers of the directory get it with the times at which heartbeats were
applied here, converted to the current time of day of this process. Must not know which brokers are
silent for too long.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from node.nameserver.directory.directory import Directory
from node.nameserver.directory.groups import Group, RegisteredBroker

_MS: Final = 1000


class LastSeen:
    """The last-seen times of one replica. Call `note` at least every second: a broker that it sees
    for the first time counts as seen now."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._last_seen: dict[tuple[str, int], tuple[int, float]] = {}
        """By group and broker: the count of applied reports, and the time at which it was noted."""

    def note(self, directory: Directory) -> None:
        """Record which brokers have reported since the last call."""
        now_s, before = self._monotonic_s(), self._last_seen
        self._last_seen = {}
        for group in directory.groups.values():
            for broker_id in group.brokers:
                key, count = (group.name, broker_id), group.report_counts.get(broker_id, 0)
                seen = before.get(key)
                self._last_seen[key] = seen if seen and seen[0] == count else (count, now_s)

    def view(self, directory: Directory, now_unix_ms: int) -> Directory:
        """Return the directory for readers, which compare its times with `now_unix_ms`."""
        self.note(directory)
        now_s = self._monotonic_s()
        shown = copy.copy(directory)
        shown.groups = {
            name: self._seen(group, now_unix_ms, now_s) for name, group in directory.groups.items()
        }
        return shown

    def _seen(self, group: Group, now_unix_ms: int, now_s: float) -> Group:
        def seen(broker: RegisteredBroker) -> RegisteredBroker:
            silent_ms = int((now_s - self._last_seen[group.name, broker.broker_id][1]) * _MS)
            return replace(broker, last_seen_ms=now_unix_ms - silent_ms)

        return replace(group, brokers={key: seen(broker) for key, broker in group.brokers.items()})
