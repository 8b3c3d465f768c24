"""Hosts that are neither well nor dead: far away, on a bad wire, with a slow disk or a slow core.

Each gate has its reason beside it. The time before the fault is measured in the same run, so a slow
machine has wide gates, and a node that got slower alone has not.
"""

from typing import Final

from chaos.scenario import ScenarioContext
from chaos.strikes import kill_leader

from hosts.fabric.conditions import LinkCondition
from hosts.latencies import LatencyGate, judge_latencies, measured
from hosts.registry import host_scenario, on_hosts
from hosts.target import HostProfile

MEASURED_S: Final = 6.0
WAN: Final = LinkCondition(delay_ms=30.0, jitter_ms=5.0)
"""One way; two places of a continent."""
_WAN_GATE: Final = LatencyGate(
    1.0,
    280.0,
    "an append takes a way to the leader and back, and one to a follower and back: 140 ms at most; "
    "a batch that waits for the one before takes these twice",
)
_LOSS: Final = LinkCondition(loss=0.01)
_LOSS_GATE: Final = LatencyGate(
    2.0,
    250.0,
    "a lost frame is sent again after 200 ms, the least of the kernel; a second loss of the same "
    "one doubles that, and is too rare for one in a hundred",
)
_REORDER: Final = LinkCondition(delay_ms=4.0, jitter_ms=3.0, reorder=0.1, duplicate=0.05)
_REORDER_GATE: Final = LatencyGate(
    2.0, 100.0, "four ways of 7 ms, twice for a batch that waits, and what TCP takes for a loss"
)
WRITES_PER_S: Final = 25
_SLOW_FOLLOWER_GATE: Final = LatencyGate(
    2.0, 50.0, "the leader and the other follower are a quorum: nothing waits for the slow one"
)
_SLOW_LEADER_GATE: Final = LatencyGate(
    2.0,
    800.0,
    "a leader acks what its own disk has: a sync takes several writes at 40 ms each, and an append "
    "may come just behind the one before",
)
FOLLOWER_CORE_SHARE: Final = 0.05
LEADER_CORE_SHARE: Final = 0.1
"""Of one core. A process that may run for so much of each 100 ms stands still for the rest."""
_SLOW_LEADER_CORE_GATE: Final = LatencyGate(
    2.0,
    1200.0,
    "with a tenth of a core a piece of work of 100 ms takes a second, and all appends wait for it",
)


@host_scenario("wan", "N8")
async def wan(x: ScenarioContext) -> None:
    """30 +- 5 ms one way between all hosts, and to clients; then the leader is killed."""
    network = on_hosts(x).network
    before = await measured(x, MEASURED_S / 2)
    pairs = network.all_pairs(with_clients=True)
    async with x.fault("latency", "30 +- 5 ms each way on all links"):
        network.set(pairs, WAN)
        during = await measured(x, MEASURED_S)
        x.prove(f"appends took {during.p50:.0f} ms", during.p50 > 100.0)
        judge_latencies(x, before, during, _WAN_GATE)
        await kill_leader(x)
        await x.acked()


@host_scenario("one-percent-loss", "N8 N15")
async def one_percent_loss(x: ScenarioContext) -> None:
    """One frame in a hundred is lost on all links of the leader's host; then the leader is killed
    with the same loss everywhere."""
    network, leader = on_hosts(x).network, await x.leader()
    before = await measured(x, MEASURED_S / 2)
    pairs = network.around(leader, with_clients=True)
    async with x.fault("loss", f"1 % around host {leader}"):
        network.set(pairs, _LOSS)
        during = await measured(x, MEASURED_S)
        lost = network.counts(pairs).lost
        x.prove(f"{lost} frames were lost", lost > 0)
        judge_latencies(x, before, during, _LOSS_GATE)
        network.set(network.all_pairs(with_clients=True), _LOSS)
        await kill_leader(x)
        await x.acked()


@host_scenario("reordered", "N10 N15")
async def reordered(x: ScenarioContext) -> None:
    """Frames overtake each other and arrive twice on all links; then the leader is killed."""
    network = on_hosts(x).network
    before = await measured(x, MEASURED_S / 2)
    pairs = network.all_pairs(with_clients=True)
    async with x.fault("reorder", "10 % overtake, 5 % come twice"):
        network.set(pairs, _REORDER)
        during = await measured(x, MEASURED_S)
        counts = network.counts(pairs)
        x.prove(f"{counts.overtook} frames overtook others", counts.overtook > 0)
        x.prove(f"{counts.doubled} frames came twice", counts.doubled > 0)
        judge_latencies(x, before, during, _REORDER_GATE)
        await kill_leader(x)
        await x.acked()


@host_scenario("slow-disk", "D15", HostProfile(needs=("slow-disks",), has_disks=True))
async def slow_disk(x: ScenarioContext) -> None:
    """A follower's disk takes 25 writes a second, then the leader's; then the leader is killed."""
    target = on_hosts(x)
    before = await measured(x, MEASURED_S / 2)
    slow = await x.follower()
    async with x.fault("slow disk", f"host {slow}"):
        await x.do(target.slow_disk, slow, WRITES_PER_S)
        during = await measured(x, MEASURED_S)
        judge_latencies(x, before, during, _SLOW_FOLLOWER_GATE)
        await x.do(target.lift_limits)
    slow = await x.leader()
    async with x.fault("slow disk", f"host {slow}"):
        await x.do(target.slow_disk, slow, WRITES_PER_S)
        during = await measured(x, MEASURED_S)
        x.prove(f"appends took {during.p50:.0f} ms", during.p50 > before.p50)
        judge_latencies(x, before, during, _SLOW_LEADER_GATE)
        await kill_leader(x)
        await x.acked()


@host_scenario("slow-core", "P6 P10", HostProfile(needs=("slow-cores",)))
async def slow_core(x: ScenarioContext) -> None:
    """A follower has a twentieth of a core; then the leader a tenth, and it is killed."""
    target = on_hosts(x)
    before = await measured(x, MEASURED_S / 2)
    slow = await x.follower()
    async with x.fault("slow core", f"host {slow}"):
        await x.do(target.slow_core, slow, FOLLOWER_CORE_SHARE)
        during = await measured(x, MEASURED_S)
        x.prove("it used its share up", await x.do(target.throttled_count, slow) > 0)
        judge_latencies(x, before, during, _SLOW_FOLLOWER_GATE)
        await x.do(target.lift_limits)
    slow = await x.leader()
    async with x.fault("slow core", f"host {slow}"):
        await x.do(target.slow_core, slow, LEADER_CORE_SHARE)
        during = await measured(x, MEASURED_S)
        judge_latencies(x, before, during, _SLOW_LEADER_CORE_GATE)
        await kill_leader(x)
        await x.acked()
