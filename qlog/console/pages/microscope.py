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
from quorumlog.command_errors import explain
from quorumlog.errors import DeadlineError, QuorumlogError
from store.microscope.difference import first_difference
from store.microscope.look import look
from store.microscope.specimen import FieldRow, FieldTable, Specimen, SpecimenKind

if TYPE_CHECKING:
    from quorumlog.admin.types import LogRead

_NODE_S: Final = 2.0
"""Time for one node to give its bytes."""
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
        "differences": None,
    }
    if thing is None:
        return context
    chosen = [n for n in dict.fromkeys((node, other)) if n]
    halves = await asyncio.gather(*(_half(cluster, node_id, thing) for node_id in chosen))
    errors = [half for half in halves if isinstance(half, QuorumlogError)]
    if len(errors) == len(halves):
        raise errors[0]
    tables = [{} if isinstance(half, QuorumlogError) else half for half in halves]
    if len(tables) == 2 and not errors:
        context["differences"] = _differences(*tables)
    first = {kind: at for kind, at, _ in context["differences"] or ()}
    context["reads"] = [
        {
            "node_id": node_id,
            "error": explain(half).what if isinstance(half, QuorumlogError) else "",
            "tables": [_shown(table, first.get(kind)) for kind, table in found.items()],
        }
        for node_id, half, found in zip(chosen, halves, tables, strict=True)
    ]
    return context


async def _half(
    cluster: Cluster, node_id: int, thing: dict[str, Any]
) -> dict[str, FieldTable] | QuorumlogError:
    """Return the tables of one node by kind, or why there are none."""
    try:
        async with asyncio.timeout(_NODE_S):
            read = await cluster.client.admin.read_log(node_id, **thing)
    except TimeoutError:
        return DeadlineError(f"node {node_id} does not answer within {_NODE_S:.0f} s")
    except QuorumlogError as error:
        return error
    tables = await asyncio.to_thread(_tables, read)
    return {table.specimen.kind.value: table for table in tables}


def _differences(
    here: dict[str, FieldTable], there: dict[str, FieldTable]
) -> list[tuple[str, int, str]]:
    """Return the first byte that differs in each thing: its kind, the byte, and the field."""
    found = []
    for kind in {**here, **there}:
        if kind not in here or kind not in there:
            found.append((kind, 0, "what only one of them has"))
        elif difference := first_difference(here[kind], there[kind]):
            row = difference.row or difference.other_row
            found.append((kind, difference.at, row.name if row else "what only one of them has"))
    return found


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
