"""Draws a comparison: how many times better ours is, a row a line, a mark for each peer.

Owns the plot; its content comes as the record of `bench.side_by_side`. matplotlib is an extra.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.peers.registry import OWN

_COLOURS: Final = ("#2f6db3", "#c9772b", "#3d9a50", "#8a5bb5", "#b53a3a", "#5a5a5a", "#b59a2b")
_MARKS: Final = "osD^vPX"
_WIDTH_INCHES: Final = 11.0
_ROW_INCHES: Final = 0.3
_HEAD_INCHES: Final = 1.6


def draw(record: Mapping[str, Any], place: str, path: Path) -> bool:
    """Write the plot of one place, as SVG; return whether there was a ratio to draw."""
    import matplotlib
    from matplotlib.figure import Figure

    others = [one["name"] for one in record["peers"] if one["name"] != OWN]
    rows = [
        row
        for row in record["rows"]
        if row["place"] == place and any(row["peers"][peer]["ratio"] for peer in others)
    ]
    if not rows:
        return False
    figure = Figure(
        figsize=(_WIDTH_INCHES, _HEAD_INCHES + _ROW_INCHES * len(rows)), layout="constrained"
    )
    axes = figure.subplots()
    for n, peer in enumerate(others):
        ratios = [(at, row["peers"][peer]["ratio"]) for at, row in enumerate(rows)]
        points = [(at, ratio) for at, ratio in ratios if ratio is not None]
        if not points:
            continue
        medians = [ratio["median"] for _, ratio in points]
        below = [ratio["median"] - ratio["lo"] for _, ratio in points]
        above = [ratio["hi"] - ratio["median"] for _, ratio in points]
        axes.errorbar(
            medians, [at for at, _ in points], xerr=[below, above], label=peer, linestyle="none",
            marker=_MARKS[n % len(_MARKS)], color=_COLOURS[n % len(_COLOURS)], capsize=2,
        )  # fmt: skip
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row["row"] for row in rows], fontsize="small")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("times better than the peer (right of 1: ours is ahead)")
    kind, cores = record["places"][place], record["machine"]["cpu_count"]
    axes.set_title(f"{place} ({kind}), nodes and clients on {cores} cores", fontsize="medium")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=4, fontsize="small")
    # Text as text, and no date: the same figures give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "quorumlog"}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return True
