"""From cells to statements: the median of each peer with its spread, and our lead over it.

Owns the arithmetic. A ratio is of two values of one round in one place, so that both met the same
machine; the statement is the median of the ratios with the smallest and the largest. Above 1 we are
ahead, whether more or less is better. Must not know how cells came to be or how they are shown.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bench.peers.registry import OWN

MORE_IS_BETTER: Final = ("msg/s", "MB/s", "1/s")
"""Units of which more is better; of all others less is better."""

Session = Mapping[str, Any]


def spread(values: Sequence[float]) -> dict[str, Any] | None:
    """Return median, smallest and largest; None without values."""
    if not values:
        return None
    return {
        "median": round(statistics.median(values), 4),
        "lo": round(min(values), 4),
        "hi": round(max(values), 4),
        "count": len(values),
    }


def compare(sessions: Iterable[Session], peers: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows in the order of their first cell: place, row, unit, and the result of each peer.

    A peer has `value` and `ratio` (of ours to it) as `spread` returns them, and `reason` when there
    is no value.
    """
    rows: dict[tuple[str, str], _Row] = {}
    failures: dict[tuple[str, str], str] = {}
    for session in sessions:
        peer, place = session["peer"] or "", session["place"]
        for cell in session["cells"]:
            key = place, cell["row"]
            row = rows.setdefault(key, _Row(place, cell["row"], cell["unit"], session["scenario"]))
            if cell["value"] is None:
                row.reasons.setdefault(peer, cell["reason"])
            else:
                row.values.setdefault(peer, {})[session["round"]] = cell["value"]
        if session["failure"]:
            failures.setdefault((peer, f"{place}/{session['scenario']}"), session["failure"])
    places = list(dict.fromkeys(place for place, _ in rows))
    scenarios = ("limits", "rates", "topics", "growth")  # The machine's own come first.
    ordered = sorted(
        rows.values(), key=lambda row: (places.index(row.place), scenarios.index(row.scenario))
    )
    return [row.told(peers, failures) for row in ordered]


class _Row:
    def __init__(self, place: str, name: str, unit: str, scenario: str) -> None:
        self.place, self.name, self.unit, self.scenario = place, name, unit, scenario
        self.values: dict[str, dict[int, float]] = {}
        self.reasons: dict[str, str] = {}

    def told(self, peers: Sequence[str], failures: Mapping[tuple[str, str], str]) -> dict[str, Any]:
        return {
            "place": self.place,
            "scenario": self.scenario,
            "row": self.name,
            "unit": self.unit,
            "machine": spread(list(self.values.get("", {}).values())),
            "peers": {
                peer: {
                    "value": spread(list(self.values.get(peer, {}).values())),
                    "ratio": None if peer == OWN else spread(self._ratios(peer)),
                    "reason": self._reason(peer, failures),
                }
                for peer in peers
            },
        }

    def _ratios(self, peer: str) -> list[float]:
        own, other = self.values.get(OWN, {}), self.values.get(peer, {})
        pairs = [(own[n], other[n]) for n in own if n in other and own[n] > 0 and other[n] > 0]
        if self.unit in MORE_IS_BETTER:
            return [ours / theirs for ours, theirs in pairs]
        return [theirs / ours for ours, theirs in pairs]

    def _reason(self, peer: str, failures: Mapping[tuple[str, str], str]) -> str | None:
        if peer in self.values:
            return None
        failure = failures.get((peer, f"{self.place}/{self.scenario}"))
        return self.reasons.get(peer) or failure or "not measured"
