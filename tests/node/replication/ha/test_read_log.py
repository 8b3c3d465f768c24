"""ReadLog of a plain log: what readers do not see is not given, and damage is given as it is."""

import asyncio
from pathlib import Path

import pytest

from node.errors.common import BadRequestError, WrongModeError
from quorumlog.pb.admin_pb2 import ReadLogRequest, ReadLogResponse
from store.errors import PositionRangeError
from store.microscope.difference import first_difference
from store.microscope.look import look
from store.microscope.specimen import FieldTable, FieldVerdict, Specimen, SpecimenKind
from tests.node.replication.ha.ha_nodes import group
from tests.patience import eventually
from tests.store.overwrites import flip


def tables(response: ReadLogResponse) -> tuple[FieldTable, ...]:
    return look(
        [
            Specimen(SpecimenKind(one.kind), one.data, one.file, one.at, one.log_position,
                     one.number, one.topic, one.queue_id)
            for one in response.things
        ]
    )  # fmt: skip


async def test_a_node_gives_what_its_readers_see_right_or_wrong(tmp_path: Path) -> None:
    async with group(tmp_path) as world:
        node1, node2 = world.nodes[1], world.nodes[2]
        await node1.append(0, 3)
        await world.settled()
        place = ReadLogRequest.QueueUnit(topic="orders", queue_id=0, offset=2)
        unit = ReadLogRequest(queue_unit=place)
        [_, found] = tables(await node1.admin.read_log(unit))
        record = ReadLogRequest(log_position=found.specimen.position)
        with pytest.raises(WrongModeError):
            await node1.admin.read_log(ReadLogRequest(index=0))
        with pytest.raises(BadRequestError):
            await node1.admin.read_log(ReadLogRequest())

        body_at = next(row.at for row in found.rows if row.name == "body")
        file = node2.settings.directory / found.specimen.file
        flip(file, found.specimen.at + body_at, 1)
        [good, *_], [bad, *_] = [
            tables(await node.admin.read_log(record)) for node in (node1, node2)
        ]
        wrong = [row.name for row in bad.rows if row.verdict is FieldVerdict.WRONG]
        assert (good.wrong_count, wrong) == (0, ["bodyCRC"])
        difference = first_difference(good, bad)
        assert difference is not None
        assert difference.row is not None
        assert (difference.at, difference.row.name) == (body_at, "body")

        flip(file, found.specimen.at + body_at, 1)
        end = node1.log.end
        world.isolate(1)
        under_way = asyncio.create_task(node1.append(3, 4))
        await eventually(lambda: node1.log.end > end, "written, and on no other node")
        with pytest.raises(PositionRangeError):
            await node1.admin.read_log(ReadLogRequest(log_position=end))
        place.offset = 3
        with pytest.raises(PositionRangeError):
            await node1.admin.read_log(ReadLogRequest(queue_unit=place))
        world.heal()
        await under_way
