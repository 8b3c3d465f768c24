"""Values of strangers in the name server: topics, reports and values of others have their room."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from node.config.nameserver import NameServerSettings
from node.errors.common import BusyError
from node.errors.nameserver import DirectoryRefusedError
from node.nameserver.calls import NameServerCalls
from node.nameserver.directory.directory import put_pair_command
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.directory.reports import TopicQueues
from node.nameserver.replica.replicated import NameServer
from node.nameserver.replica.status import CHANGE_COUNT_MAX
from node.runtime.accounts import Accounts, on_behalf_of
from quorumlog.pb.nameserver_pb2 import PutValueRequest
from tests.node.nameserver.brokers import raft_leader, send
from tests.node.nameserver.test_registration import LocalDirectory


def put(key: str, value: str) -> PutValueRequest:
    return PutValueRequest(namespace="n", key=key, value=value)


async def test_values_of_two_addresses_leave_room_to_others_and_to_all_topics() -> None:
    access = LocalDirectory()
    service: Any = SimpleNamespace(server=access)
    for node in range(3):
        calls, accounts = NameServerCalls(service), Accounts()
        for host in ("10.0.0.1", "10.0.0.2"):
            with on_behalf_of(accounts.open(host)):
                with pytest.raises(DirectoryRefusedError, match="malformed"):
                    await calls.put_value(put("too long", "v" * 50_000))
                for number in (0, 0, *range(8)):  # The same one again is no more.
                    await calls.put_value(put(f"{host} {node} {number}", "v" * 4_000))
                with pytest.raises(BusyError, match=rf"of {host}"):
                    await calls.put_value(put("one more", "v" * 4_000))
        with on_behalf_of(accounts.open("10.0.0.3")):
            await calls.put_value(put("mine", "1"))
    for number in range(5_000):
        send(access.directory, put_pair_command("n", f"k{number}", "v"))
    directory, limits = access.directory, DirectoryLimits()
    assert 0 <= limits.pairs_size_bytes_max - directory.pairs_size_bytes < 100
    topics = {f"{number:0200}": TopicQueues(1, 1, 6) for number in range(1 << 12)}
    assert send(directory, raft_leader(1, 3, topics=topics).command()).is_accepted
    for _ in range(10):
        send(directory, {**put_pair_command("n", "mine", "v" * 4_000), "expected": "v" * 4_000})
    assert len(str(directory.snapshot()["results"])) < 1 << 18, "refusals keep no values"


async def test_changes_of_values_leave_room_to_reports() -> None:
    settings = NameServerSettings("127.0.0.1:1", ("127.0.0.1:1",), "unused", None)
    server, accounts = NameServer(settings), Accounts()
    command = put_pair_command("n", "k", "v")
    with ExitStack() as held:
        for host in ("10.0.0.1", "10.0.0.2"):
            with on_behalf_of(accounts.open(host)):
                for _ in range(CHANGE_COUNT_MAX // 2):
                    held.enter_context(server._room_for(command))
                with pytest.raises(BusyError), server._room_for(command):
                    pass
        with on_behalf_of(accounts.open("10.0.0.3")), server._room_for({"op": "heartbeat"}):
            assert server.status().in_flight_count == CHANGE_COUNT_MAX + 1
    assert server.status().in_flight_count == 0
