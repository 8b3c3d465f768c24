"""Clients whose answers are lost (fault-matrix 3.7)."""

from chaos.scenario import ScenarioContext, scenario
from chaos.toxiproxy import DOWNSTREAM


def _lost_answer_size_bytes(x: ScenarioContext) -> int:
    """Return the bytes of answers that never reached a client over the transport in use, counted
    when connections end."""
    counts = x.cluster.links.swallowed(x.cluster.links.of_clients(), x.load.transport)
    return sum(
        received - sent for (_, stream), (received, sent) in counts.items() if stream == DOWNSTREAM
    )


@scenario("lost-answers", "K1 K2")
async def lost_answers(x: ScenarioContext) -> None:
    """Answers to clients end half-way while leadership is lost: the same receipt, one record."""
    links = x.cluster.links
    for turn in range(5):
        pairs = links.of_clients()
        budget = x.random.randrange(200, 8_000)
        async with x.fault("lost-answers", f"after {budget} bytes", count=len(pairs)):
            for pair in pairs:
                await x.do(links.add_one_way, pair, "limit_data", DOWNSTREAM, bytes=budget)
            await x.linger(0.3, 1.0)
            if turn % 2:
                old = await x.kill_leader()
                await x.do(x.cluster.start, old)
            await x.do(links.heal)
        await x.acked(100)
        await x.do(x.cluster.wait_ready)
    await x.until("answers were lost", _lost_answer_size_bytes, x)
    x.prove(f"answers were lost, transport {x.load.transport}", True)
