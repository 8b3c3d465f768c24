"""The log microscope: one thing of a node's files as bytes and fields, beside that of another node.

The node gives the bytes as they are (`admin.read_log`), `store.microscope` decodes and checks them.
"""

import asyncio
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import Request

from qlog.console.cluster import Cluster
from qlog.console.paging import number_of, whole
from qlog.console.shield import RefusedError
from store.microscope.difference import first_difference
from store.microscope.look import look
from store.microscope.specimen import FieldRow, FieldTable, Specimen, SpecimenKind

if TYPE_CHECKING:
    from quorumlog.admin.types import LogRead

_ROW_COUNT: Final = 300
_HEX_SIZE_BYTES: Final = 48
_COLOR_COUNT: Final = 6
_INT32_MAX: Final = (1 << 31) - 1


class ShownRow(NamedTuple):
    """A field as the page shows it."""

    row: FieldRow
    hex: str
    color: int
    is_first_difference: bool


class ShownTable(NamedTuple):
    """A specimen as the page shows it."""

    table: FieldTable
    rows: list[ShownRow]
    row_count: int


async def show(cluster: Cluster, request: Request) -> dict[str, Any]:
    """Return the fields of one thing, of one node or of two."""
    node_ids = await cluster.node_ids()
    query = request.query_params
    thing = _thing(request)
    node = whole(request, "node", node_ids[0] if node_ids else 1, 1, _INT32_MAX)
    other = whole(request, "other", 0, 0, _INT32_MAX)
    context: dict[str, Any] = {
        "node_ids": node_ids,
        "node": node,
        "other": other,
        "kind": query.get("kind", "index"),
        "reads": [],
        "difference": None,
    }
    if thing is None:
        return context
    chosen = [n for n in dict.fromkeys((node, other)) if n]
    reads = await asyncio.gather(
        *(cluster.client.admin.read_log(node_id, **thing) for node_id in chosen)
    )
    tables = [await asyncio.to_thread(_tables, read) for read in reads]
    differs_at: int | None = None
    if len(tables) == 2:
        if tables[0][0].specimen.kind != tables[1][0].specimen.kind:
            raise RefusedError(409, "The two nodes have things of different kinds there.")
        difference = first_difference(tables[0][0], tables[1][0])
        context["difference"] = "none" if difference is None else difference
        differs_at = None if difference is None else difference.at
    context["reads"] = [
        {
            "node_id": read.node_id,
            "tables": [
                _shown(table, differs_at if number == 0 else None)
                for number, table in enumerate(found)
            ],
        }
        for read, found in zip(reads, tables, strict=True)
    ]
    return context


def _thing(request: Request) -> dict[str, Any] | None:
    """Return what the address asks for, as the arguments of `read_log`; None: nothing yet."""
    kind, at = request.query_params.get("kind", "index"), request.query_params.get("at", "")
    if not at:
        return None
    if kind == "queue":
        topic, _, rest = at.rpartition(":")[0].rpartition(":")
        offset = at.rpartition(":")[2]
        if not topic:
            raise RefusedError(400, "A queue unit is TOPIC:QUEUE:OFFSET.")
        queue_id = number_of("QUEUE of TOPIC:QUEUE:OFFSET", rest, 0, _INT32_MAX)
        return {"queue": (topic, queue_id, number_of("OFFSET of TOPIC:QUEUE:OFFSET", offset))}
    names = {"index": "index", "position": "log_position", "slot": "key_slot"}
    if kind not in names:
        raise RefusedError(400, f"kind is one of {', '.join(names)}, queue.")
    return {names[kind]: whole(request, "at", 0, 0)}


def _tables(read: "LogRead") -> tuple[FieldTable, ...]:
    specimens = []
    for thing in (read.thing, *read.beside):
        kind, *values = astuple(thing)
        specimens.append(Specimen(SpecimenKind(kind), *values))
    return look(specimens)


def _shown(table: FieldTable, differs_at: int | None) -> ShownTable:
    rows = []
    data = table.specimen.data
    for number, row in enumerate(table.rows[:_ROW_COUNT]):
        piece = data[row.at : row.at + min(row.size_bytes, _HEX_SIZE_BYTES)]
        text = piece.hex(" ") + (" \N{HORIZONTAL ELLIPSIS}" if row.size_bytes > len(piece) else "")
        is_first = differs_at is not None and row.at <= differs_at < row.at + row.size_bytes
        rows.append(ShownRow(row, text, number % _COLOR_COUNT, is_first))
    return ShownTable(table, rows, len(table.rows))
