"""Links that are cut, slow, broken, one-way or lying (fault-matrix 3.1)."""

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Final

from chaos.clients import PLAIN_QUEUE
from chaos.errors import NotSoError
from chaos.links import CLIENTS, Pair
from chaos.profile import ClusterMode, Profile
from chaos.recorder import now_ns
from chaos.scenario import DEADLINE_S, RAFT, ScenarioContext, scenario
from chaos.strikes import bites, cut, swallowed
from chaos.toxiproxy import DOWNSTREAM, HOST, UPSTREAM

FIVE: Final = Profile(node_count=5)
MESSAGE_SIZE_BYTES: Final = 1 << 20
"""Size of one message of the log (raft/config.py): lost with a broken link; 16 s of a thin one."""
BEFORE_SIZE_BYTES: Final = MESSAGE_SIZE_BYTES + (256 << 10)
"""Bytes received before the link breaks. A second sending of them would be seen."""
SLACK_SIZE_BYTES: Final = 128 << 10
_SILENCE_WORDS: Final = ("ended, silent", ": nothing heard for")
"""Reports of a Raft peer, which gives up after 4 s, and of a master or slave, after 20 s."""


async def _isolated(x: ScenarioContext, node: int, seconds: float, *, is_leader: bool) -> None:
    links = x.cluster.links
    pairs = links.between([node], [other for other in links.nodes if other != node])
    if is_leader:
        x.leader_lost()
    async with cut(x, "isolate", f"node {node}", pairs):
        if is_leader:
            await x.new_leader(node)
            status = x.cluster.status
            await x.until("the old leader steps down", lambda: status()[node].role != "leader")
        await x.acked()
        await x.linger(seconds)


@scenario("isolate-leader", "N1", modes=RAFT)
async def isolate_leader(x: ScenarioContext) -> None:
    """The leader is cut from all others, silently, and not from clients; twice."""
    for _ in range(2):
        old = await x.leader()
        await _isolated(x, old, 0.5, is_leader=True)
        await x.do(x.cluster.wait_ready)


@scenario("isolate-follower", "N2")
async def isolate_follower(x: ScenarioContext) -> None:
    """A follower is cut off for seconds; when it is back, term and leader are the same."""
    leader, term = await x.leader(), await x.term()
    await _isolated(x, await x.follower(), 4.0, is_leader=False)
    await x.do(x.cluster.wait_ready)
    x.prove("the leader stayed", await x.leader() == leader)
    x.prove("the term stayed", await x.term() == term)


@scenario("split-five", "N3", profile=FIVE, modes=RAFT)
async def split_five(x: ScenarioContext) -> None:
    """Five nodes are split 2 to 3 with the leader on the smaller side, then on the larger."""
    links = x.cluster.links
    for with_leader in (2, 3):
        leader = await x.leader()
        others = [node for node in x.cluster.node_ids if node != leader]
        x.random.shuffle(others)
        side = [leader, *others[: with_leader - 1]]
        rest = others[with_leader - 1 :]
        if with_leader == 2:
            x.leader_lost()
        async with cut(x, "split", f"{side} from {rest}", links.between(side, rest)):
            if with_leader == 2:
                x.prove("the larger side elects", await x.new_leader(leader) in rest)
            await x.acked()
            x.prove("the smaller side does not lead", await x.leader() in max(side, rest, key=len))
        await x.do(x.cluster.wait_ready)


@scenario("one-way", "N4", modes=RAFT)
async def one_way(x: ScenarioContext) -> None:
    """Messages are lost one way: leader to a follower, back, then all that the leader sends."""
    links = x.cluster.links
    for at in range(3):
        leader = await x.leader()
        follower, other = [node for node in x.cluster.node_ids if node != leader]
        to, back = (leader, follower), (follower, leader)
        lost = ([to], [back], [to, (leader, other)])[at]
        pairs = links.between([leader], [follower, other])
        before = swallowed(x, pairs)
        term = await x.term()
        async with x.fault("one-way", f"lost is {lost}", count=len(lost)):
            for source, target in lost:
                await x.do(links.cut_direction, source, target)
            await x.linger(2.0)
            await x.acked()
            await bites(x, "the one-way cut", pairs, before)
            x.prove("elections end", await x.term() - term < 8)
            await x.do(links.heal)
        await x.do(x.cluster.wait_ready)


@scenario("partial", "N5", modes=RAFT)
async def partial(x: ScenarioContext) -> None:
    """The link between two of three is cut, around each node in turn: one leader, and no more."""
    links, nodes = x.cluster.links, x.cluster.node_ids
    for middle in nodes:
        left, right = [node for node in nodes if node != middle]
        pairs = links.between([left], [right])
        async with cut(x, "partial", f"{left} from {right}", pairs):
            await x.linger(2.0)
            await x.acked()
            term = await x.term()
            await x.linger(1.5)
            x.prove("the term has settled", await x.term() <= term + 1)
        await x.do(x.cluster.wait_ready)


@scenario("ring-and-bridge", "N6", profile=FIVE, modes=RAFT)
async def ring_and_bridge(x: ScenarioContext) -> None:
    """Five nodes in a ring of majorities, then two pairs that only one node joins."""
    links, nodes = x.cluster.links, list(x.cluster.node_ids)
    x.random.shuffle(nodes)
    a, b, c, d, e = nodes
    ring = [links.between([nodes[at]], [nodes[(at + 2) % 5]]) for at in range(5)]
    for what, pairs in (
        ("ring", [pair for each in ring for pair in each]),
        ("bridge", links.between([a, b], [d, e])),
    ):
        async with cut(x, what, f"order {nodes}, {c} joins", pairs):
            await x.linger(1.0)
            await x.acked()
        await x.do(x.cluster.wait_ready)


@scenario("flapping", "N7")
async def flapping(x: ScenarioContext) -> None:
    """The links of one node come and go, 0.2 to 1.5 s each."""
    links, node = x.cluster.links, x.random.choice(x.cluster.node_ids)
    pairs = links.between([node], [other for other in links.nodes if other != node])
    before, term = swallowed(x, pairs), await x.term()
    for _ in range(6):
        async with x.fault("flap", f"node {node}"):
            await x.do(links.cut, pairs)
            await x.linger(0.2, 1.5)
            await x.do(links.join, pairs)
        await x.linger(0.2, 1.5)
    await x.acked()
    x.prove("the links lost bytes", swallowed(x, pairs) > before)
    x.prove("the number of terms is bounded", await x.term() - term <= 12)


@scenario("latency", "N8")
async def latency(x: ScenarioContext) -> None:
    """100 ms and more everywhere, then 500 ms to one follower, which slows no other node."""
    links = x.cluster.links
    if x.options.mode is ClusterMode.ASYNC_MASTER:  # An async master's receipts wait for no link.
        # Each way takes 25 ms at least; receipts may come late on a busy machine.
        what, least_ms, measure = "a slave showed a message after", 20, _time_to_show
    else:
        what, least_ms, measure = "acks took", 40, time_of_acks
    fast = await measure(x)
    async with x.fault("latency", "50 +- 25 ms each way on all links"):
        await x.do(links.add, links.all_pairs(), "latency", latency=50, jitter=25)
        slow = await measure(x)
        x.prove(f"{what} {slow:.0f} ms instead of {fast:.0f}", slow > max(least_ms, fast))
        await x.do(links.heal)
    await x.do(x.cluster.wait_ready)
    leader, node = await x.leader(), await x.follower()
    async with x.fault("latency", f"250 ms each way to node {node}"):
        pairs = links.between([node], links.nodes)
        await x.do(links.add, pairs, "latency", latency=250, jitter=0)
        await x.acked(300)
        took = await time_of_acks(x)
        x.prove(f"acks took {took:.0f} ms and did not wait for it", 0 < took < 250)
        x.prove("the leader stayed", await x.leader() == leader)


async def time_of_acks(x: ScenarioContext) -> float:
    """Return the median time from call to receipt of 60 puts and appends, in milliseconds."""
    first = len(x.recorder.operations)
    await x.acked(120)
    spans = sorted(
        ((op.return_ns or 0) - op.invoke_ns) / 1e6
        for op in x.recorder.operations[first:]
        if op.kind.value in ("append", "put") and op.return_ns is not None
    )
    return spans[len(spans) // 2] if spans else 0.0


async def _time_to_show(x: ScenarioContext) -> float:
    """Return the median time until a slave shows a just acked message, of nine, in milliseconds."""
    node, clients, spans = await x.follower(), x.load.clients, []
    for _ in range(9):
        await x.acked(1)  # The last acked message may have been in flight for long.
        began = now_ns()
        await clients.client.pull(
            clients.topic,
            PLAIN_QUEUE,
            0,
            max_count=1,
            consistency="local",
            at_least_index=clients.last_index,
            node_id=node,
            timeout_ms=20_000,
        )
        spans.append((now_ns() - began) / 1e6)
    return sorted(spans)[len(spans) // 2]


@scenario("thin-link", "N9")
async def thin_link(x: ScenarioContext) -> None:
    """A follower that was away catches up over 64 KB/s; the leader's acks do not wait for it.

    When its link breaks it continues where it was."""
    links, node = x.cluster.links, await x.follower()
    await x.kill(node, f"node {node} misses something")
    start = await _end(x, await x.leader())
    while await _end(x, await x.leader()) < start + 4 * MESSAGE_SIZE_BYTES:
        await x.acked(200)
    pairs = [pair for pair in links.between([node], links.nodes) if CLIENTS not in pair]
    async with x.fault("bandwidth", f"64 KB/s to node {node}"):
        await x.do(links.add, pairs, "bandwidth", rate=64)
        await x.do(x.cluster.start, node)
        await x.until("it is back", x.cluster.is_up, node)
        took = await time_of_acks(x)
        x.prove(f"acks took {took:.0f} ms and did not wait for the thin link", 0 < took < 250)
        await _has_caught_up(x, node, start + BEFORE_SIZE_BYTES)
        await x.do(links.refuse, pairs)
        x.inject("break", f"the links of node {node}")
        broken, received = await _end(x, node), await x.do(_received, x, node)
        await x.do(links.accept, pairs)
        await _has_caught_up(x, node, broken + SLACK_SIZE_BYTES)
        await x.do(links.refuse, pairs)
        came, went = await _end(x, node) - broken, await x.do(_received, x, node) - received
        x.prove(
            f"{went:.0f} bytes for {came}: it continues where it was",
            0.9 * came <= went < came + MESSAGE_SIZE_BYTES + SLACK_SIZE_BYTES,
        )
        await x.do(links.accept, pairs)


async def _end(x: ScenarioContext, node: int) -> int:
    return (await x.load.clients.client.admin.node_status(node)).end_log_position


async def _has_caught_up(x: ScenarioContext, node: int, position: int) -> None:
    """Wait until a node's log ends at `position` or later; demand that it never goes back."""
    deadline, end = time.monotonic() + DEADLINE_S * x.options.time_scale, 0
    while end < position:
        before, end = end, await _end(x, node)
        x.demand_none([f"the log of node {node} went back from {before} to {end}"] * (end < before))
        if time.monotonic() >= deadline:
            raise NotSoError(f"node {node} does not come to {position}, it is at {end}")
        await asyncio.sleep(0.05)


def _received(x: ScenarioContext, node: int) -> float:
    """Return the number of bytes that a node received from all others."""
    return x.target.metric(node, "quorumlog_peer_received_bytes_total")


@scenario("slices", "N10")
async def slices(x: ScenarioContext) -> None:
    """All bytes between nodes come in pieces of 1 to 64 bytes."""
    links, pairs = x.cluster.links, x.cluster.links.all_pairs()
    async with x.fault("slices", "1 to 64 bytes", count=len(pairs)):
        await x.do(links.add, pairs, "slicer", average_size=32, size_variation=31, delay=10)
        # A new connection begins with all its bytes in slices.
        await _reconnect(x, pairs)
        before = _sent(x, pairs)
        await x.acked(500)
        await _reconnect(x, pairs)
        await x.until("bytes came in slices", lambda: _sent(x, pairs) > before)
        x.prove("bytes came in slices", True)


async def _reconnect(x: ScenarioContext, pairs: Sequence[Pair]) -> None:
    """Close the connections: the proxies count the bytes of ended ones."""
    await x.do(x.cluster.links.refuse, pairs)
    await x.do(x.cluster.links.accept, pairs)
    await x.acked(20)


def _sent(x: ScenarioContext, pairs: Sequence[Pair]) -> int:
    """Return the bytes that came out of these links, of those of clients over the transport in
    use, of connections that ended."""
    counts = x.cluster.links.swallowed(pairs, x.load.transport).values()
    return sum(sent for _, sent in counts)


@scenario("broken-links", "N11")
async def broken_links(x: ScenarioContext) -> None:
    """Connections are closed, refused and reset, between nodes and to clients."""
    links = x.cluster.links
    everything = links.all_pairs(with_clients=True)
    refused = 0
    for turn in range(6):
        await x.acked(20)  # Clients have a connection to the leader again.
        # That link is certainly in use: the others may be links that this mode does not need.
        used = (CLIENTS, await x.leader())
        chosen = [*x.random.sample([pair for pair in everything if pair != used], 3), used]
        kind = ("refuse", "reset")[turn % 2]
        before = await x.do(_sent_by_link, x, chosen)
        async with x.fault(kind, str(chosen), count=len(chosen)):
            if kind == "refuse":
                await x.do(links.refuse, chosen)
                refused += await x.do(_count_refused, x, chosen)
                await x.linger(0.2, 1.0)
                await x.do(links.accept, chosen)
            else:
                # Resets hit new connections only, so the old ones are closed first.
                await x.do(links.refuse, chosen)
                await x.do(links.add, chosen, "reset_peer", timeout=0)
                await x.do(links.accept, chosen)
                await x.linger(0.2, 1.0)
                await x.do(links.remove, chosen, "reset_peer")
        # The proxies count the bytes of a connection once it is over.
        await x.until("a client's connection ended", _ended, x, {used: before[used]})
        over = f"transport {x.load.transport}"
        x.prove(f"{kind}: connections of {await x.do(_ended, x, before)} ended, {over}", True)
        await x.linger(0.2)
    x.prove(f"{refused} connections were refused", refused)
    await x.acked()


def _sent_by_link(x: ScenarioContext, pairs: Sequence[Pair]) -> dict[Pair, int]:
    return {pair: _sent(x, [pair]) for pair in pairs}


def _ended(x: ScenarioContext, before: dict[Pair, int]) -> list[Pair]:
    """Return the links with an increased byte count."""
    return [pair for pair, sent in before.items() if _sent(x, [pair]) > sent]


def _count_refused(x: ScenarioContext, pairs: Sequence[Pair]) -> int:
    """Dial each of these links, as a node or a client would; return how many ports refuse."""
    count = 0
    for port in (port for pair in pairs for port in x.cluster.links.ports(pair)):
        try:
            socket.create_connection((HOST, port), timeout=5).close()
        except ConnectionRefusedError:
            count += 1
    return count


@scenario("cut-in-a-message", "N12 K1")
async def cut_in_a_message(x: ScenarioContext) -> None:
    """Connections end after a random number of bytes, in the middle of a message."""
    links = x.cluster.links
    for turn in range(8):
        # Every other link is that of clients to the leader, which is certainly in use.
        is_of_clients = turn % 2 == 1
        used = (CLIENTS, await x.leader())
        pair = used if is_of_clients else x.random.choice(links.all_pairs())
        stream = x.random.choice((UPSTREAM, DOWNSTREAM))
        budget = x.random.randrange(1, 6_000 if is_of_clients else 60_000)
        before = await x.do(swallowed, x, [pair])
        async with x.fault("limit", f"{pair} {stream} ends after {budget} bytes"):
            await x.do(links.add_one_way, pair, "limit_data", stream, bytes=budget)
            if is_of_clients:  # A small budget leaves no way to the leader: nothing may be acked.
                await bites(x, f"the limit, transport {x.load.transport},", [pair], before)
            else:
                await x.acked(100)
            await x.linger(0.1, 0.6)
            await x.do(links.heal)
        await x.acked(100)
        await x.linger(0.05 * turn)


@scenario("swizzle", "N17", profile=FIVE, modes=RAFT)
async def swizzle(x: ScenarioContext) -> None:
    """Links are cut in one order, and healed in another."""
    links = x.cluster.links
    pairs = [pair for pair in links.all_pairs() if pair[0] < pair[1]]
    chosen = x.random.sample(pairs, 6)
    both = [found for a, b in chosen for found in links.between([a], [b])]
    before = swallowed(x, both)
    async with x.fault("swizzle", str(chosen), count=len(chosen)):
        for a, b in chosen:
            await x.do(links.cut, links.between([a], [b]))
            await x.linger(0.1, 0.6)
        await x.linger(1.0)
        x.random.shuffle(chosen)
        for a, b in chosen:
            await x.do(links.join, links.between([a], [b]))
            await x.linger(0.1, 0.6)
    await x.acked()
    x.prove("the cuts swallowed bytes", swallowed(x, both) > before)


@scenario("clients-cut", "N18")
async def clients_cut(x: ScenarioContext) -> None:
    """Clients cannot reach the leader, which all nodes name; then leadership moves."""
    links, leader = x.cluster.links, await x.leader()
    pairs = links.of_clients(leader)
    sent = await x.do(_sent_by_link, x, pairs)
    async with x.fault("clients-cut", f"from node {leader}"):
        await x.do(links.refuse, pairs)
        await x.until("clients' connections ended", _ended, x, sent)
        x.prove(f"clients' connections ended, transport {x.load.transport}", True)
        await x.linger(0.3)  # For answers in flight.
        before = x.load.clients.acked_count
        await x.linger(1.5)
        x.prove("nothing was acked", x.load.clients.acked_count == before)
        x.prove("the leader stayed", await x.leader() == leader)
        x.leader_lost()
        await x.kill(leader, f"the leader, node {leader}")
        await x.new_leader(leader)
        # All clients have followed hints to the old leader until now.
        await x.acked()
        await x.do(x.cluster.start, leader)
        await x.do(links.accept, pairs)
    await x.do(x.cluster.wait_ready)
    await x.acked()


@scenario("half-open", "N13")
async def half_open(x: ScenarioContext) -> None:
    """Peers vanish silently for longer than any silence that is tolerated."""
    links, node = x.cluster.links, await x.follower()
    before = await x.do(_silences, x)
    pairs = links.between([node], links.nodes)
    async with x.fault("half-open", f"node {node}"):
        await x.do(links.cut, pairs)
        await x.until("a silent connection is given up", lambda: _silences(x) > before)
        x.prove("silence was noticed", True)
        await x.acked()
        await x.do(links.join, pairs)


def _silences(x: ScenarioContext) -> int:
    logs = map(x.cluster.local.log_path, x.cluster.node_ids)
    texts = [log.read_text("utf-8", errors="replace") for log in logs]
    return sum(text.count(words) for text in texts for words in _SILENCE_WORDS)
