"""Three replicas over real ledgers: random crashes, lost messages, truncations, retention.

At the end their data files are equal byte for byte, everything acked is there at its place, and the
queues are what a rebuild from the log makes of them.
"""

from pathlib import Path

import pytest

from raft.pump.effects import Outgoing
from raft.pump.replica import Replica
from raft.transitions import Role
from store.ledger.entry import KIND_DATA
from tests.node.ledger_cluster import Cluster, Node, open_log
from tests.seeds import some_of
from tests.store.records import messages


class NotedCluster(Cluster):
    """A cluster that remembers all it sent."""

    def __init__(self, root: Path, seed: int, *, loss: float) -> None:
        self.sent: list[Outgoing] = []
        super().__init__(root, seed, loss=loss)

    def send(self, sender: Node, outgoing: Outgoing) -> None:
        self.sent.append(outgoing)
        super().send(sender, outgoing)


def data_bytes(node: Node) -> dict[int, bytes]:
    """The data files by position, with the bytes of entries and blanks only."""
    ledger = node.log.store.ledger
    lo, hi = ledger.min_position, ledger.max_position
    contents = {}
    for file in ledger.files.files:
        first, end = max(file.position, lo), min(file.end_position, hi)
        if first < end:
            contents[first] = file.read_any(first, end - first)
    return contents


def queues_of(node: Node) -> dict[tuple[str, int], tuple[int, list[bytes]]]:
    """Next offset of each queue and all of its records."""
    store, queues = node.log.store, {}
    for topic, queue_id, lo, hi in store.reads.queues():
        records, offset = [], lo
        while offset < hi:
            result = store.reads.pull(topic, queue_id, offset)
            assert result.record_count, f"{topic}/{queue_id} at {offset}: {result.status}"
            records.append(result.data)
            offset = result.next_offset
        queues[topic, queue_id] = (hi, [b"".join(records)])
    return queues


def check_acked(cluster: Cluster, node: Node) -> None:
    """Everything acked is where its receipt says, if it has not expired."""
    store, seen = node.log.store, 0
    for lo, (hi, index, result) in cluster.acked.items():
        if index <= node.log.base_index:
            continue
        for number, position, offset in zip(
            range(lo, hi), result.record_positions, result.queue_offsets, strict=True
        ):
            message = store.reads.message_at(position)
            assert int(message.body[:8]) == number
            assert message.queue_offset == offset
            seen += 1
    assert seen or node.log.base_index > 0


def check_equal(cluster: Cluster) -> None:
    nodes = list(cluster.nodes.values())
    last = {node.log.last_index for node in nodes}
    assert len(last) == 1, last
    assert len({node.log.store.ledger.tail.link.chain_crc for node in nodes}) == 1
    assert len({tuple(node.log.load().configurations) for node in nodes}) == 1
    lo = max(node.log.store.ledger.min_position for node in nodes)
    size_bytes = cluster.config.file_size_bytes
    lo = -(-lo // size_bytes) * size_bytes
    images = [{at: data for at, data in data_bytes(node).items() if at >= lo} for node in nodes]
    assert images[0] == images[1] == images[2]
    for node in nodes:
        check_acked(cluster, node)
        ledger = node.log.store.ledger
        entries = map(ledger.entry, range(ledger.first_index, ledger.last_index + 1))
        bodies = [entry.body for entry in entries if entry.kind == KIND_DATA]
        times = [message.store_unix_ms for body in bodies for message in messages(body)]
        assert times == sorted(times), "the log's time goes back"


def check_rebuild(cluster: Cluster) -> None:
    """Close everything and open it without queues: the log tells the same."""
    before = {n: queues_of(node) for n, node in cluster.nodes.items()}
    positions = {n: node.log.store.dispatched_position for n, node in cluster.nodes.items()}
    cluster.close()
    for node_id, node in cluster.nodes.items():
        directory = node.root / "consumequeue"
        for path in directory.rglob("0*"):
            if path.is_file():  # Of the wrong size: damaged, so everything is built again.
                path.write_bytes(path.read_bytes()[:-20])
        node.log = open_log(node.root, node_id, config=cluster.config)
        assert node.log.store.recovery.derived_rebuilt or not before[node_id]
        assert node.log.store.dispatched_position == positions[node_id]
        assert queues_of(node) == {k: v for k, v in before[node_id].items() if any(v[1])}
        node.log.close()


def wreak_havoc(cluster: Cluster, steps: int, *, retain: bool) -> None:
    """Let anything happen in any order: mostly work, sometimes a fault."""
    random = cluster.random
    for _ in range(steps):
        choice = random.random()
        up = [node for node in cluster.nodes.values() if node.is_up]
        down = [node for node in cluster.nodes.values() if not node.is_up]
        if choice < 0.25:
            for node in up:  # Also to a deposed leader that does not know it yet.
                if node.replica.core.state.role is Role.LEADER:
                    cluster.put(node, random.choice(("orders", "bills")))
                    if random.random() < 0.5:
                        node.settle()
        elif choice < 0.60:
            for _ in range(min(len(cluster.mail), random.choice((1, 5, 20)))):
                cluster.deliver(random.choice((0, 0, 0, random.randrange(len(cluster.mail)))))
        elif choice < 0.82 and cluster.syncs:
            for _ in range(random.randrange(1, len(cluster.syncs) + 1)):
                cluster.finish_sync(0)
        elif choice < 0.93:
            for node in up:
                node.replica.tick()
                node.settle()
        elif choice < 0.935 and up:  # A node that believes that much time has passed.
            node = random.choice(up)
            for _ in range(45):
                node.replica.tick()
            node.settle()
        elif choice < 0.94 and up:
            node = random.choice(up)
            if cluster.may_lose_power and random.random() < 0.7:
                node.lose_power()
            else:
                node.crash()
        elif choice < 0.95 and down:
            random.choice(down).start()
        elif choice < 0.97 and retain and up:
            random.choice(up).retain(random.randrange(1, 4))
        elif choice < 0.972:
            cluster.mail.clear()


@pytest.mark.parametrize("seed", some_of(range(6), 1))
def test_random_crashes_and_truncations_leave_equal_logs(tmp_path: Path, seed: int) -> None:
    cluster = Cluster(tmp_path, seed, loss=0.05)
    wreak_havoc(cluster, 2500, retain=False)
    finish(cluster)
    check_equal(cluster)
    check_rebuild(cluster)


@pytest.mark.parametrize("seed", some_of(range(300, 304), 1))
def test_the_short_way_of_the_steady_state_sends_and_writes_the_same_bytes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for is_lean in (True, False):
        monkeypatch.setattr(Replica, "is_lean", is_lean)
        cluster = NotedCluster(tmp_path / str(is_lean), seed, loss=0.05)
        wreak_havoc(cluster, 1500, retain=False)
        finish(cluster)
        nodes = list(cluster.nodes.values())
        images = [data_bytes(node) for node in nodes], [queues_of(node) for node in nodes]
        outcomes.append((cluster.sent, images, cluster.acked, cluster.not_applied))
        cluster.close()
    lean, general = outcomes
    assert len(lean[0]) > 300
    for number, (ours, theirs) in enumerate(zip(lean[0], general[0], strict=True)):
        assert ours == theirs, f"message {number} differs"
    assert lean == general


@pytest.mark.parametrize("may_lose_power", [False, True])
@pytest.mark.parametrize("seed", some_of(range(100, 105), 1))
def test_with_retention_and_snapshots_too(tmp_path: Path, seed: int, may_lose_power: bool) -> None:
    cluster = Cluster(tmp_path, seed, retained_lag=20, loss=0.05, may_lose_power=may_lose_power)
    wreak_havoc(cluster, 3000, retain=True)
    finish(cluster)
    check_equal(cluster)
    offsets = [
        {key: hi for key, (hi, _) in queues_of(node).items() if hi}
        for node in cluster.nodes.values()
    ]
    assert offsets[0] == offsets[1] == offsets[2], "next offsets, also of queues without records"
    lives = sum(node.life_count for node in cluster.nodes.values())
    assert (lives > 2) == may_lose_power
    cluster.close()


def finish(cluster: Cluster) -> None:
    """Start everybody, let the faults end and the last entries arrive."""
    cluster.loss = 0.0
    cluster.quiet()
    for node in cluster.nodes.values():
        if not node.is_up:
            node.start()
    leader = cluster.elect()
    acked = len(cluster.acked)
    for topic in ("orders", "bills"):
        assert cluster.put(leader, topic)
    leader.settle()
    for _ in range(400):
        cluster.run(1)
        if {node.replica.applied for node in cluster.nodes.values()} == {leader.log.last_index}:
            break
    assert len(cluster.acked) >= acked + 2
