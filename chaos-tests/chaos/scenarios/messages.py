"""Messages between nodes that are lost, doubled, late or changed, which no proxy can do to single
messages (fault-matrix N15, N16)."""

from chaos.scenario import RAFT, ScenarioContext, scenario


@scenario("lossy-links", "N15", modes=RAFT)
async def lossy_links(x: ScenarioContext) -> None:
    """Messages between nodes are lost, doubled and late, so that they come in another order."""
    interceptor = x.target.interceptor
    async with x.fault("lossy", "a tenth lost, doubled, late by up to 300 ms", count=3):
        await x.do(interceptor.set, drop=0.1, double=0.1, late=0.1, late_ms=300)
        await x.linger(6.0)
        await x.acked(100)
        await x.do(interceptor.clear)
    counts = await x.do(interceptor.counts)
    x.prove(f"messages were lost: {counts}", counts.get("dropped", 0) > 10)
    x.prove("messages were doubled and late", counts["doubled"] > 10 and counts["late"] > 10)


@scenario("flipped-bits", "N16")
async def flipped_bits(x: ScenarioContext) -> None:
    """Bits of messages between nodes are flipped, then of answers to the leader only: refused.

    No content of these messages is believed."""
    leader = await x.leader()
    answers = [(node, leader) for node in x.target.node_ids if node != leader]
    for what, links, chance in (("all", None, 0.005), ("answers", answers, 0.005)):
        before, interceptor = await x.do(_refused_frame_count, x), x.target.interceptor
        flipped = (await x.do(interceptor.counts))["flipped"]
        async with x.fault("flip", f"some of {what}"):
            if links is None:
                await x.do(interceptor.set, flip=chance)
            else:
                await x.do(interceptor.flip, links, chance)
            await x.linger(5.0)
            await x.acked(100)
            await x.do(interceptor.clear)
        count = (await x.do(interceptor.counts))["flipped"] - flipped
        x.prove(f"bits were flipped, {count} times", count > 2)
        # A damaged message ends its connection, and other messages in flight are gone with it,
        # changed or not.
        refused = await x.do(_refused_frame_count, x) - before
        x.prove(
            f"{refused:.0f} frames of {what} were refused, {count} were changed",
            refused >= max(1, count // 2),
        )


def _refused_frame_count(x: ScenarioContext) -> float:
    """Return how many connections all nodes closed because of an invalid message."""
    name, codes = "quorumlog_peer_closed_total", ("protocol_error", "bad_checksum")
    return sum(
        x.target.metric(node, name, code=code) for node in x.target.node_ids for code in codes
    )
