"""The name server on PySyncObj: results, settings, encryption, limits, status, a clean stop."""

import logging
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import FAIL_REASON

from node.config.nameserver import NameServerSettings
from node.errors.nameserver import (
    ChangeUnknownError,
    FilesDamagedError,
    NameServerSettingsError,
    NoQuorumError,
    PysyncobjVersionError,
    ReplicaFailedError,
)
from node.nameserver.directory.directory import put_pair_command
from node.nameserver.directory.fields import Result
from node.nameserver.directory.routes import route
from node.nameserver.replica.pysyncobj import Answer, DirectoryReplica
from node.nameserver.replica.replicated import NameServer
from tests.node.nameserver.brokers import NOW_MS, raft_leader, raft_report
from tests.node.nameserver.replicas import free_addresses, servers, settings_of
from tests.patience import eventually

PASSWORD = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("password", [None, PASSWORD])
async def test_three_replicas_agree(tmp_path: Path, password: str | None) -> None:
    async with servers(tmp_path, password=password) as replicas:
        for number, replica in enumerate(replicas):
            pair = put_pair_command("ns", f"k{number}", "v")
            assert (await replica.change(pair, timeout_ms=20_000)).is_accepted
        refusal = await replicas[0].change({**pair, "expected": "other"})
        assert (refusal.is_accepted, refusal.reason) == (False, "changed")

        def are_equal() -> bool:
            return len({str(replica.snapshot()) for replica in replicas}) == 1

        await eventually(are_equal, "equal directories")
        assert replicas[0].snapshot()["pairs"] == {"ns": {"k0": "v", "k1": "v", "k2": "v"}}
        states = sorted(replica.status().state for replica in replicas)
        assert states == ["follower", "follower", "leader"]
        assert replicas[0].status().commit_index > 3
        assert replicas[0].status().failure == ""


@pytest.mark.long
async def test_a_replica_alone_serves_and_keeps_what_it_was_told(tmp_path: Path) -> None:
    (settings,) = settings_of(tmp_path, 1)
    server = NameServer(NameServerSettings(**settings))
    await server.start()
    await server.change(raft_leader(1, 4).command(), timeout_ms=20_000)
    beat = raft_report(1, now_ms=NOW_MS + 5, epoch=4).heartbeat()
    assert (await server.report(beat)).is_accepted
    (share,) = server.look(lambda directory: route(directory, "orders", NOW_MS)).shares
    assert share.master_id == 1
    server.compact()
    await eventually((tmp_path / "replica0" / "dump").exists, "a dump")
    await server.change(put_pair_command("ns", "k", "v"))
    before = server.snapshot()
    await server.stop()
    again = NameServer(NameServerSettings(**settings))
    await again.start()
    await eventually(lambda: again.snapshot() == before, "the state")
    await again.stop()
    assert stat.S_IMODE(os.stat(settings["directory"]).st_mode) == 0o700


@pytest.mark.long
async def test_without_a_quorum_nothing_is_taken_and_routes_still_answer(tmp_path: Path) -> None:
    async with servers(tmp_path) as replicas:
        await replicas[0].change(raft_leader(1, 4).command(), timeout_ms=20_000)
        for replica in replicas[1:]:
            await replica.stop()
        await eventually(lambda: replicas[0].status().state == "no_leader", "no leader")
        with pytest.raises(NoQuorumError):
            await replicas[0].change(put_pair_command("ns", "k", "v"), timeout_ms=300)
        with pytest.raises(NoQuorumError):
            await replicas[0].report(put_pair_command("ns", "k", "v"), timeout_ms=300)
        assert replicas[0].look(lambda directory: route(directory, "orders", NOW_MS)).shares
        with pytest.raises(ReplicaFailedError):
            await replicas[1].change(put_pair_command("ns", "k", "v"))


@pytest.mark.long
@pytest.mark.parametrize("lies", [1, 1_000])
async def test_a_success_that_is_not_true_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: int
) -> None:
    truth = DirectoryReplica.submit
    reads: list[bytes] = []

    def submit(self: DirectoryReplica, encoded: bytes, answer: Answer) -> None:
        if b"read_back" in encoded or len(reads) >= lies:
            truth(self, encoded, answer)
            return
        reads.append(encoded)
        answer(Result(True), FAIL_REASON.SUCCESS)

    async with servers(tmp_path, 1) as (server,):
        await eventually(lambda: server.status().state == "leader", "a leader")
        monkeypatch.setattr(DirectoryReplica, "submit", submit)
        pair = put_pair_command("ns", "k", "v")
        if lies == 1:
            assert (await server.change(pair, timeout_ms=20_000)).is_accepted
        else:
            with pytest.raises(ChangeUnknownError):
                await server.change(pair, timeout_ms=400)
        kept = server.look(lambda directory: dict(directory.pairs))
        assert kept == ({"ns": {"k": "v"}} if lies == 1 else {})
        assert reads


@pytest.mark.long
async def test_a_clean_stop_leaves_no_thread_no_descriptor_and_no_port(tmp_path: Path) -> None:
    for number in range(2):  # The first time opens what stays, such as the loop's own threads.
        descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        async with servers(tmp_path / str(number), 1) as (server,):
            await eventually(lambda: server.status().state == "leader", "a leader")
            address = server.status().leader
        assert server.status().state == "stopped"
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert threading.active_count() == threads
    host, port = address.split(":")
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect((host, int(port)))


@pytest.mark.long
async def test_a_fault_on_disk_ends_the_replica_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (settings,) = settings_of(tmp_path, 1)
    server = NameServer(NameServerSettings(**settings))
    await server.start()
    await server.change(put_pair_command("ns", "k", "v"), timeout_ms=20_000)
    (tmp_path / "replica0" / "dump.tmp").mkdir()  # Where the dump is written.
    with caplog.at_level(logging.CRITICAL, "node.nameserver.replica.replicated"):
        server.compact()
        await eventually(lambda: server.status().state == "failed", "the end")
    assert server.status().failure
    with pytest.raises(ReplicaFailedError):
        await server.change(put_pair_command("ns", "k", "w"))
    await server.stop()


@pytest.mark.long
async def test_a_directory_of_another_replica_is_refused(tmp_path: Path) -> None:
    async with servers(tmp_path, 1) as (server,):
        await eventually(lambda: server.status().state == "leader", "a leader")
    (settings,) = settings_of(tmp_path, 1)
    with pytest.raises(FilesDamagedError, match="belongs to"):
        await NameServer(NameServerSettings(**settings)).start()


def test_addresses_can_be_printed_beside_the_library() -> None:
    """It replaces `socket.inet_ntop` by one for Windows; psutil and others then fail."""
    assert socket.inet_ntop(socket.AF_INET, bytes([127, 0, 0, 1])) == "127.0.0.1"


async def test_another_version_of_the_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pysyncobj.version.VERSION", "0.3.18")
    (settings,) = settings_of(tmp_path, 1)
    with pytest.raises(PysyncobjVersionError):
        await NameServer(NameServerSettings(**settings)).start()


@pytest.mark.parametrize(
    ("address", "members", "password", "setting"),
    [
        ("10.0.0.1:9876", None, None, "members"),
        ("127.0.0.1:9876", ["127.0.0.1:9876", "10.0.0.2:9876"], None, "members"),
        ("0.0.0.0:9876", None, PASSWORD, "members"),
        ("localhost:9876", None, None, "members"),
        ("127.0.0.1:0", None, None, "members"),
        ("127.0.0.1:9876", ["127.0.0.1:9877"], None, "members"),
        ("127.0.0.1:9876", ["127.0.0.1:9876"] * 2, None, "members"),
        ("10.0.0.1:9876", None, "short", "secret_file"),
    ],
)
def test_settings_that_let_strangers_in_are_refused(
    address: str, members: Any, password: str | None, setting: str
) -> None:
    settings = NameServerSettings(address, tuple(members or [address]), "unused", password)
    with pytest.raises(NameServerSettingsError) as refused:
        NameServer(settings)
    assert refused.value.setting == setting


def test_settings_beyond_loopback_are_taken_with_a_password() -> None:
    (port,) = free_addresses(1)
    for address in ("10.0.0.1:9876", "::1:9876", port):
        NameServerSettings(address, (address,), "unused", PASSWORD).check()
