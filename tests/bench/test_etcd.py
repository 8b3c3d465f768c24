"""The messages of the peer byte for byte, and a short run against real etcd nodes, if any."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from bench.peers import etcd
from bench.peers.etcd_messages import message_classes

M = message_classes()


def test_requests_have_the_bytes_that_etcd_reads() -> None:
    """Tag, length, value: by hand from the field numbers."""
    put = M["PutRequest"](key=b"k", value=b"vv")
    assert put.SerializeToString() == b"\x0a\x01k\x12\x02vv"
    txn = M["TxnRequest"](success=[M["RequestOp"](request_put=put)] * 2)
    operation = b"\x12\x07" + put.SerializeToString()
    assert txn.SerializeToString() == (b"\x12\x09" + operation) * 2


def test_answers_are_read_and_unknown_fields_are_skipped() -> None:
    answer = M["TxnResponse"].FromString(b"\x0a\x04\x10\x07\x20\x05\x10\x01\x1a\x00")
    assert (answer.header.member_id, answer.succeeded) == (7, True)


def test_a_machine_without_etcd_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(etcd.EtcdMissingError, match="etcd-server"),
        etcd.etcd_cluster(str(tmp_path)),
    ):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd-server is not installed")
def test_three_nodes_take_transactions_and_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd, "_TRIAL_S", 0.1)
    with etcd.etcd_cluster(str(tmp_path)) as cluster:
        result = asyncio.run(
            etcd.measure(
                cluster,
                seconds=0.2,
                serial_seconds=0.1,
                puts_per_txn=10,
                value_size_bytes=100,
                on_progress=lambda _: None,
            )
        )
    assert result["acked_count"] == 10 * result["batch_latency"]["count"] > 0
    assert result["serial_latency"]["p50_ms"] > 0
    assert all(process.returncode is not None for process in cluster.processes)
    assert os.listdir(tmp_path) == []
