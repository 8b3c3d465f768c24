"""ReadLog: the bytes of one thing of each node, compared by the microscope."""

from dataclasses import astuple
from pathlib import Path

import pytest

from quorumlog.admin.types import LogRead
from quorumlog.errors import InvalidRequestError, QuorumlogError
from quorumlog.sync import connect
from store.microscope.difference import first_difference
from store.microscope.look import look
from store.microscope.specimen import FieldTable, Specimen, SpecimenKind
from tests.qlog.running import Qlog


def tables(read: LogRead) -> tuple[FieldTable, ...]:
    found = [Specimen(*astuple(one)) for one in (read.thing, *read.beside)]
    return look([one._replace(kind=SpecimenKind(one.kind)) for one in found])


def test_each_node_gives_the_same_bytes_and_nothing_is_wrong(
    qlog: Qlog, topic: str, tmp_path: Path
) -> None:
    qlog.produce(tmp_path, topic, "one\ntwo\nthree\n", "--key", "k")
    with connect(qlog.nodes.bootstrap) as client:
        leader = client.admin.cluster_status().leader_id
        unit = client.admin.read_log(leader, queue=(topic, 0, 2))
        position = unit.beside[0].log_position
        last = client.admin.chain_digest(leader).index
        by_node = {}
        for node in qlog.nodes.node_ids:
            client.admin.chain_digest(node, index=last)
            reads = [
                client.admin.read_log(node, queue=(topic, 0, 2)),
                client.admin.read_log(node, log_position=position),
                client.admin.read_log(node, index=last),
                client.admin.read_log(node, key_slot=7),
            ]
            assert [read.thing.kind for read in reads] == [
                "queue_unit", "record", "entry", "key_slot",
            ]  # fmt: skip
            by_node[node] = [tables(read) for read in reads]
            assert not [row for read in by_node[node] for p in read for row in p.rows
                        if row.verdict == "wrong"]  # fmt: skip
        assert b"three" in unit.beside[0].data
        first, *others = [[read[0] for read in reads[:3]] for reads in by_node.values()]
        for other in others:
            assert [first_difference(a, b) for a, b in zip(first, other, strict=True)] == [None] * 3
        with pytest.raises(InvalidRequestError, match="name one of"):
            client.admin.read_log(leader)
        for wrong in ({"queue": (topic, 0, 3)}, {"queue": ("../" + topic, 0, 0)},
                      {"index": last + 1_000}, {"log_position": 1 << 40}, {"key_slot": 1 << 40},
                      {"index": -1}):  # fmt: skip
            with pytest.raises(QuorumlogError) as refused:
                client.admin.read_log(leader, **wrong)
            assert refused.value.code == "store.out_of_range", wrong
