"""The pictures of the Grafana boards: `python -m tests.deploy.board_pictures`.

Grafana cannot be run here, so matplotlib draws each panel from the queries of the board, which a
real Prometheus answers over two clusters under load. Owns that drawing.
"""

import asyncio
import json
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

from deploy.boards import BOARDS, Board, Panel, queries
from deploy.local import LocalCluster
from deploy.local_nodes import DIRECT
from tests.deploy.test_boards import load, prometheus
from tests.qlog.console.pictures import DIRECTORY, fill

mpl.use("Agg")
_STEP_S: Final = 5
_COLUMN_COUNT: Final = 4


def main() -> None:
    """Draw the boards; about three minutes."""
    with tempfile.TemporaryDirectory() as directory:
        raft = LocalCluster.create(Path(directory) / "raft")
        slaves = LocalCluster.create(Path(directory) / "ha", replication="sync_master")
        try:
            for cluster in (raft, slaves):
                cluster.start()
            for cluster in (raft, slaves):
                cluster.wait_ready()
            nodes = [node.http_address for cluster in (raft, slaves) for node in cluster.status()]
            with prometheus(Path(directory), nodes) as server:
                began_s = now_s(server)
                asyncio.run(load(raft, server))
                fill(slaves.bootstrap)
                for board in BOARDS:
                    draw(board, server, began_s)
        finally:
            for cluster in (raft, slaves):
                cluster.stop()


def now_s(server: str) -> float:
    """Return the time of Prometheus."""
    with DIRECT.open(f"{server}/api/v1/query?query=time()", timeout=60) as answer:
        return float(json.load(answer)["data"]["result"][1])


def draw(board: Board, server: str, began_s: float) -> None:
    """Store one picture of all panels of a board."""
    from matplotlib import pyplot

    panels = [panel for row in board.rows.values() for panel in row]
    row_count = -(-len(panels) // _COLUMN_COUNT)
    figure, axes = pyplot.subplots(row_count, _COLUMN_COUNT, figsize=(16, 2.4 * row_count))
    by_title = {title: [] for title, _ in queries(board)}  # type: dict[str, list[str]]
    for title, query in queries(board):
        by_title[title].append(query)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw_panel(axis, panel, by_title[panel.title], server, began_s)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    figure.suptitle(board.title)
    figure.tight_layout()
    figure.savefig(DIRECTORY / f"board-{board.name}.png", dpi=62)
    pyplot.close(figure)


def _draw_panel(axis: Any, panel: Panel, exprs: list[str], server: str, began_s: float) -> None:
    for expr, (_, legend) in zip(dict.fromkeys(exprs), panel.queries, strict=False):
        for series in _ranges(server, expr, began_s):
            label = legend
            for name, value in series["metric"].items():
                label = label.replace("{{" + name + "}}", value)
            points = [(float(at) - began_s, float(value)) for at, value in series["values"]]
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1)
    for value, color in panel.lines:
        if value <= axis.get_ylim()[1]:
            axis.axhline(value, color=color, linewidth=0.8, linestyle="--")
    axis.set_title(panel.title, fontsize=8)
    axis.tick_params(labelsize=6)
    axis.set_ylim(bottom=0)


def _ranges(server: str, query: str, began_s: float) -> list[dict[str, Any]]:
    given = {"query": query, "start": began_s, "end": now_s(server), "step": _STEP_S}
    words = urllib.parse.urlencode(given)
    with DIRECT.open(f"{server}/api/v1/query_range?{words}", timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


if __name__ == "__main__":
    main()
