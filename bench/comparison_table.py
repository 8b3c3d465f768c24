"""A comparison as Markdown: the peers, the ratios, the values behind them, and the reasons.

Owns the layout. Its content comes as the record that `bench.side_by_side` writes as JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.peers.registry import OWN


def markdown(record: Mapping[str, Any]) -> str:
    """Return the whole page."""
    peers = [facts["name"] for facts in record["peers"]]
    notes = _Notes()
    parts = [_head(record), _who(record["peers"])]
    for place, directory_kind in record["places"].items():
        rows = [row for row in record["rows"] if row["place"] == place]
        if not rows:  # Topics are counted in one place only.
            continue
        parts.append(f"## {place} ({directory_kind})")
        parts.append(_limits(rows))
        compared = [row for row in rows if row["machine"] is None]
        parts.append(_ratios(compared, peers, notes))
        parts.append(_values(compared, peers))
    parts.append(notes.text())
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    return (
        "# Side by side\n\n"
        f"`{record['command']}`, begun {record['begun']}, version {record['commit']}, on "
        f"{machine['cpu_count']} cores ({machine['cpu']}), {machine['memory_mib']} MiB, Linux "
        f"{machine['kernel']}, Python {machine['python']}. Nodes and clients share the machine. "
        "bench/README.md says how to read this; quote ratios of one run only."
    )


def _who(peers: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [one["name"], one["version"], one["durability"], one["client"], one["settings"]]
        for one in peers
    ]
    return "## Who\n\n" + _table(["peer", "version", "an ack means", "client", "settings"], rows)


def _limits(rows: Sequence[Mapping[str, Any]]) -> str:
    limits = []
    for row in rows:
        if figures := row["machine"]:
            median, lo, hi = (_short(figures[name]) for name in ("median", "lo", "hi"))
            limits.append(f"{row['row']} {median} {row['unit']} ({lo} to {hi})")
    return "; ".join(limits) + "." if limits else ""


def _ratios(rows: Sequence[Mapping[str, Any]], peers: Sequence[str], notes: "_Notes") -> str:
    others = [peer for peer in peers if peer != OWN]
    lines = []
    for row in rows:
        cells = []
        for peer in others:
            figures = row["peers"][peer]
            own = row["peers"][OWN]
            if figures["ratio"] is not None:
                cells.append(_ratio(figures["ratio"]))
            else:
                cells.append(notes.mark(figures["reason"] or own["reason"] or "not in one round"))
        lines.append([row["row"], *cells])
    title = (
        "How many times better ours is: median (smallest to largest of the rounds); bold where it "
        "is behind."
    )
    return f"{title}\n\n" + _table(["", *others], lines)


def _values(rows: Sequence[Mapping[str, Any]], peers: Sequence[str]) -> str:
    lines = []
    for row in rows:
        values = [row["peers"][peer]["value"] for peer in peers]
        lines.append([row["row"], row["unit"], *(_short(v["median"]) if v else "" for v in values)])
    return "The medians behind them, of this run on this machine.\n\n" + _table(
        ["", "unit", *peers], lines
    )


def _ratio(figures: Mapping[str, Any]) -> str:
    text = _short(figures["median"])
    if figures["count"] > 1:
        text += f" ({_short(figures['lo'])} to {_short(figures['hi'])})"
    return f"**{text}**" if figures["median"] < 1 else text


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


class _Notes:
    """Reasons as numbered notes, each printed once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        return f"[{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"

    def text(self) -> str:
        if not self._numbers:
            return ""
        lines = [f"{number}. {_escaped(reason)}" for reason, number in self._numbers.items()]
        return "## Why there is no ratio\n\n" + "\n".join(lines)
