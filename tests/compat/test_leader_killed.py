"""Official clients: a leader dies while they send, and everything comes, in order.

The newest version of each language and all of the classic one for Java, with few messages, since a
run takes most of a minute.
`python -m tests.compat.official --count 2000 --record` is the long run of all; its figures are in
docs/records/clients.md. How long a message group stands still is judged there: here the machine
runs other tests beside, so it only must not wait for the client's next route. The leader stays dead
here: with it, the client for Python would say only after minutes what became of the transactions
whose end was lost (docs/rocketmq.md).
"""

from pathlib import Path
from typing import Final

import pytest

from deploy.local import LocalCluster
from tests import missing
from tests.compat.official.account import KINDS
from tests.compat.official.clients import Official, pinned
from tests.compat.official.run import run, run_requests

COUNT: Final = 30
NEWEST: Final = {client.language: client for client in pinned()}.values()
CLIENTS: Final = [client for client in pinned() if client.is_classic_java or client in NEWEST]
ROUTE_MS: Final = 25_000
"""Clients ask for a route every 30 s."""


@pytest.mark.long
@pytest.mark.parametrize("official", CLIENTS, ids=lambda client: client.name.replace(" ", "-"))
def test_no_acknowledged_message_is_lost_and_order_is_kept(
    official: Official, tmp_path: Path
) -> None:
    missing.installed(official.part)
    settings = {"file_size_bytes": "16MiB", **official.node_settings}
    with LocalCluster.create(tmp_path / "c", settings=settings) as cluster:
        tally = run(official, cluster, tmp_path, COUNT, leader_returns=False)
    assert tally.acked == dict.fromkeys(KINDS, COUNT)
    assert (tally.lost, tally.leaked, tally.out_of_order, tally.early) == (0, 0, 0, 0), tally
    if official.takes_addresses and not official.is_classic:
        assert tally.pause_ms < ROUTE_MS, tally


@pytest.mark.long
def test_every_request_of_a_classic_client_is_answered(tmp_path: Path) -> None:
    """In 5.3 `request` returns with the answer to its send, and seldom has a reply then."""
    official = next(client for client in pinned() if client.name.startswith("Classic Java 5.1"))
    missing.installed(official.part)
    with LocalCluster.create(tmp_path / "c", settings={"file_size_bytes": "16MiB"}) as cluster:
        events = run_requests(official, cluster, tmp_path / "p", COUNT).events
    assert sum(event["event"] == "acked" for event in events) == COUNT
    assert not [event for event in events if event["event"] == "wrong"]
