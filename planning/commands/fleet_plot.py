"""Draws a simulated fleet over time: what is acked, what is repaired, how hot the hottest host is.

Owns the plot; its values come as the report of `planning.capacity.fleet`. matplotlib is an extra.
"""

from pathlib import Path

from planning.capacity.fleet.report import FleetReport
from planning.capacity.leaders import HOT_RATIO

_SIZE_INCHES = (10.0, 8.0)
_DPI = 120


def draw(report: FleetReport, path: Path) -> None:
    """Write the plot of a report to a file; its suffix chooses the format."""
    from matplotlib.figure import Figure

    samples = report.samples
    times = [sample.at_s / 60 for sample in samples]
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    all_axes = figure.subplots(4, 1, sharex=True)
    for axes, title, values in zip(
        all_axes,
        (
            "acked share of what clients offer",
            "groups without a leader, copies behind",
            "repair, MB/s",
            f"most leaders of a host over the mean (hot above {HOT_RATIO})",
        ),
        (
            [sample.acked_share for sample in samples],
            [float(sample.leaderless_count) for sample in samples],
            [sample.repair_bytes_per_s / 1e6 for sample in samples],
            [sample.hot_ratio for sample in samples],
        ),
        strict=True,
    ):
        axes.plot(times, values, drawstyle="steps-post")
        axes.set_title(title, fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[1].plot(times, [sample.behind_count for sample in samples], drawstyle="steps-post")
    all_axes[3].axhline(HOT_RATIO, color="gray", linestyle=":")
    for axes in all_axes:
        for sample in samples:
            if sample.event:
                axes.axvline(sample.at_s / 60, color="gray", linewidth=0.5)
    all_axes[3].set_xlabel("minutes")
    figure.savefig(path, dpi=_DPI)
