"""A call takes its time-out once, however many steps it has."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quorumlog import Client
from quorumlog.admin.types import NodeDown
from quorumlog.cluster.retry import Deadline
from quorumlog.cluster.routes import Router
from quorumlog.records.queues import Queue
from tests.quorumlog.fake_cluster import Admin as AdminService
from tests.quorumlog.fake_cluster import connect, fake_cluster
from tests.quorumlog.fake_groups import connect as connect_groups
from tests.quorumlog.fake_groups import fake_groups

TIMEOUT_MS = 29_999  # Of nothing else.
OFFSETS = {Queue("orders", 0, group): 5 for group in ("g0", "g1")}


def join(client: Client) -> Coroutine[Any, Any, object]:
    return client.group_consumer("g", "orders", position="end").start()


STEPS: dict[str, Callable[[Client], Coroutine[Any, Any, object]]] = {
    "create_topic": lambda client: client.admin.create_topic("new", must_be_new=True),
    "transfer_leadership": lambda client: client.admin.transfer_leadership(99),
    "promote": lambda client: client.admin.promote(99),
    "remove_member": lambda client: client.admin.remove_member(99),
    "node_status": lambda client: client.admin.node_status(99),
    "commit_offsets": lambda client: client.admin.commit_offsets("g", OFFSETS),
    "fetch_offsets": lambda client: client.admin.fetch_offsets("g", list(OFFSETS)),
    "reset_offsets": lambda client: client.admin.reset_offsets("g", "orders", "end"),
    "start of a member": join,
}


@pytest.mark.parametrize("call", STEPS)
async def test_a_call_of_several_steps_has_one_deadline(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    made: list[float] = []
    make = Deadline.__init__

    def note(self: Deadline, timeout_ms: float) -> None:
        make(self, timeout_ms)
        made.append(timeout_ms)

    async with (
        fake_groups("g0", "g1") as groups,
        connect_groups(groups, timeout_ms=TIMEOUT_MS) as client,
    ):
        monkeypatch.setattr(Deadline, "__init__", note)
        calling = STEPS[call](client)
        made.clear()
        await asyncio.gather(calling, return_exceptions=True)
        assert made.count(TIMEOUT_MS) == 1


async def test_the_status_has_the_nodes_that_answer_while_the_refresh_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within one time-out: the refresh takes all of it."""
    answered: list[int] = []
    is_enough = asyncio.Event()
    answer = AdminService.NodeStatus

    async def status(self: AdminService, request: Any, context: Any) -> Any:
        answered.append(self.node.node_id)
        if len(answered) == 2:
            is_enough.set()
        return await answer(self, request, context)

    async def hang(_self: Router, deadline: Deadline) -> None:
        await is_enough.wait()
        raise deadline.error("the refresh", None, attempts=0)

    monkeypatch.setattr(AdminService, "NodeStatus", status)
    async with fake_cluster() as cluster, connect(cluster) as client:
        await cluster.nodes[3].stop()
        monkeypatch.setattr(Router, "refresh", hang)
        nodes = (await client.admin.cluster_status()).nodes
        assert [isinstance(node, NodeDown) for node in nodes] == [False, False, True]
