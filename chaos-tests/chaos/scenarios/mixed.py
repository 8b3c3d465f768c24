"""A group of SDK and classic members, and one that pops, while members and nodes come and go.

Owns the members' processes and the order of changes; what a member does is in chaos/mixed_member.py
and chaos/classic.py, the rules in chaos/mixed.py.
"""

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from typing import Final

import grpc

import quorumlog
from chaos.body import body_of, value_of
from chaos.feature import PATIENT_MS, feature_topic, is_at_end
from chaos.links import CLIENTS
from chaos.mixed import MixedHistory, check_mixed
from chaos.profile import Profile
from chaos.recorder import now_ns
from chaos.scenario import RAFT, ScenarioContext, scenario
from chaos.strikes import kill_leader, lead
from quorumlog.pb import rocketmq_pb2 as pb

QUEUE_COUNT: Final = 8
SEND_S: Final = 0.1
POP_S: Final = 0.25
STABLE_S: Final = 3.0
"""Time for which no queue changes hands before a quiet phase begins."""
QUIET_S: Final = 2.0
OVERLAP_RATIO: Final = 0.3
"""Changes that do not wait until the group has settled after the one before."""
SERVICE: Final = "/apache.rocketmq.v2.MessagingService"
KINDS: Final = ("sdk", "classic")
CHANGES: Final = (
    *((what, kind) for kind in KINDS for what in ("join", "leave", "kill")),
    ("kill", "leader"),
    ("kill", "follower"),
)


class _Group:
    """The members of one group, their producer, and a receiver of the same group."""

    def __init__(self, x: ScenarioContext, client: quorumlog.Client, topic: str) -> None:
        self._x, self._client, self._topic = x, client, topic
        self.name = f"{topic}-group"
        self.history = MixedHistory()
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        """Of the members, by name."""
        self._readers: list[asyncio.Task[None]] = []
        self.answers: Counter[str] = Counter()
        """Answers to the receiver, by code."""
        self.is_stopping = False

    # --- Members ---

    async def join(self, kind: str) -> None:
        """Start a member."""
        name = f"{kind}-{len(self.history.lines)}"
        links = self._x.cluster.links
        framed = [f"127.0.0.1:{links.ports((CLIENTS, node))[1]}" for node in links.nodes]
        addresses = self._x.target.bootstrap if kind == "sdk" else ",".join(framed)
        given = (kind, addresses, self._topic, self.name, name)
        with (self._x.cluster.local.directory / f"member-{name}").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "chaos.mixed_member", *given,
                stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self.processes[name] = process
        self.history.lines[name] = []
        self._readers.append(asyncio.create_task(self._read(name, process)))

    async def _read(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None, "it is a pipe"
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # Its writer was killed.
            statement = json.loads(line)
            self.history.lines[name].append(statement)
            self.history.now[name] = statement.get("queues", self.history.now.get(name, []))
        if name not in self.history.ends_ns:
            self.history.ends_ns[name] = now_ns()
            if name in self.processes:
                self.history.ended.append(f"{name} with {await process.wait()}, see member-{name}")

    async def end(self, kind: str, *, is_killed: bool) -> None:
        """End a random member of a kind."""
        names = sorted(name for name in self.processes if name.startswith(kind))
        name = self._x.random.choice(names)
        process = self.processes.pop(name)
        if is_killed:
            process.kill()
            self.history.ends_ns[name] = now_ns()
        else:
            # Before its first line a member cannot take the signal.
            await self._x.until(f"{name} runs", lambda: self.history.lines[name])
            process.terminate()
        code = await process.wait()
        if not is_killed and code:
            self.history.ended.append(f"{name} could not leave: {code}")

    async def end_all(self) -> None:
        """Let all members leave."""
        for name in list(self.processes):
            await self.end(name, is_killed=False)
        await asyncio.gather(*self._readers)

    def close(self) -> None:
        """Kill what is left."""
        for process in self.processes.values():
            process.kill()
        for task in self._readers:
            task.cancel()

    def is_shared(self) -> bool:
        """Whether each queue has one holder, and each member has a queue."""
        holders = self.history.holders()
        members = set().union(*holders.values())
        return (
            len(holders) == QUEUE_COUNT
            and all(len(one) == 1 for one in holders.values())
            and members == self.processes.keys()
        )

    # --- Messages ---

    async def produce(self) -> None:
        """Number messages in each queue, until told to stop."""
        async with self._client.producer(timeout_ms=PATIENT_MS) as producer:
            number = 0
            while not self.is_stopping:
                number += 1
                sends = [self._send(producer, queue, number) for queue in range(QUEUE_COUNT)]
                await asyncio.gather(*sends)
                await asyncio.sleep(SEND_S)

    async def _send(self, producer: quorumlog.Producer, queue: int, number: int) -> None:
        value = f"{self._topic}-{queue}-{number}"
        receipt = await producer.send(self._topic, body_of(value), queue_id=queue)
        self.history.sent[value] = (queue, receipt.queue_offset)

    async def pop(self) -> None:
        """Introduce itself and receive as a client of RocketMQ 5, until told to stop."""
        group, topic = pb.Resource(name=self.name), pb.Resource(name=self._topic)
        queue = pb.MessageQueue(topic=topic)
        request = pb.ReceiveMessageRequest(group=group, message_queue=queue, batch_size=4)
        request.invisible_duration.FromSeconds(30)
        subscription = pb.Subscription(group=group, subscriptions=[{"topic": topic}])
        settings = pb.Settings(client_type="SIMPLE_CONSUMER", subscription=subscription)
        hello = pb.TelemetryCommand(settings=settings)
        metadata, at = (("x-mq-client-id", "receiver@1"),), 0
        channels = [grpc.aio.insecure_channel(one) for one in self._x.target.bootstrap.split(",")]
        streams: dict[int, grpc.aio.StreamStreamCall] = {}
        while not self.is_stopping:
            at = (at + 1) % len(channels)
            if at not in streams or streams[at].done():
                telemetry = channels[at].stream_stream(
                    f"{SERVICE}/Telemetry",
                    request_serializer=pb.TelemetryCommand.SerializeToString,
                    response_deserializer=pb.TelemetryCommand.FromString,
                )
                streams[at] = telemetry(metadata=metadata)
            receive = channels[at].unary_stream(
                f"{SERVICE}/ReceiveMessage",
                request_serializer=pb.ReceiveMessageRequest.SerializeToString,
                response_deserializer=pb.ReceiveMessageResponse.FromString,
            )
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # Its node is down.
                await streams[at].write(hello)
                async for one in receive(request, metadata=metadata, timeout=2):
                    if one.HasField("status"):
                        self.answers[pb.Code.Name(one.status.code)] += 1
                    elif one.HasField("message"):
                        self.history.popped.append(value_of(one.message.body))
            await asyncio.sleep(POP_S)
        for channel in channels:
            await channel.close()


async def _kill_follower(x: ScenarioContext) -> None:
    node = await x.follower()
    await x.kill(node, f"a follower, node {node}")
    await x.linger(0.0, 2.0)
    await x.restart(node)


async def _change(x: ScenarioContext, group: _Group, what: str, which: str, home: int) -> None:
    if which in KINDS:
        if what != "join" and len(group.processes) == 1:
            await group.join(which)  # Without a member no queue would have a reader.
        x.inject(f"{what}-member", which)
        await (group.join(which) if what == "join" else group.end(which, is_killed=what == "kill"))
        return
    group.history.kills_ns.append(now_ns())
    await (kill_leader(x) if which == "leader" else _kill_follower(x))
    if home and await x.leader() != home:
        group.history.kills_ns.append(now_ns())  # A leader that gives up its office forgets, too.
        await lead(x, home)


async def _settled(x: ScenarioContext, group: _Group) -> None:
    """Wait until no queue changes hands, and let a quiet phase pass."""
    began_ns = now_ns()
    while True:
        await x.until("each queue has one reader, and each member queues", group.is_shared)
        before, deadline_ns = group.history.holders(), now_ns() + STABLE_S * 1e9
        while group.history.holders() == before and now_ns() < deadline_ns:
            await x.linger(0.05)
        if now_ns() >= deadline_ns:
            break
    x.recorder.note("phase", f"settled after {(now_ns() - began_ns) / 1e9 - STABLE_S:.1f} s")
    lo_ns = now_ns()
    await x.linger(QUIET_S)
    group.history.quiet.append((lo_ns, now_ns()))


async def _mixed(x: ScenarioContext, home: int = 0) -> None:
    if home:
        await lead(x, home)
    async with feature_topic(x, "mixed", QUEUE_COUNT) as (client, topic):
        group = _Group(x, client, topic)
        work = [asyncio.ensure_future(group.produce())]
        try:
            for kind in (*KINDS, *KINDS):
                await group.join(kind)
            await _settled(x, group)
            work.append(asyncio.ensure_future(group.pop()))
            for what, which in x.random.sample(CHANGES, len(CHANGES)):
                await _change(x, group, what, which, home)
                if x.random.random() >= OVERLAP_RATIO:
                    await _settled(x, group)
            await _settled(x, group)
            group.is_stopping = True
            await asyncio.gather(*work)
            what = "all offsets are those of the ends"
            await x.until_true(what, is_at_end, client, group.name, topic, QUEUE_COUNT)
            await group.end_all()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            group.close()
            _report(x, group)
        x.demand_none(check_mixed(group.history))
        x.prove(
            f"the receiver was answered {dict(group.answers)}", group.answers["PRECONDITION_FAILED"]
        )


def _report(x: ScenarioContext, group: _Group) -> None:
    history = group.history
    for member, lines in history.lines.items():
        x.keep(f"member-{member}", lines)
    x.keep("held", map(asdict, history.held()))
    took = [line["took"][2] for one in history.lines.values() for line in one if "took" in line]
    x.recorder.outcomes["mixed message taken"] += len(took)
    x.recorder.outcomes["mixed message taken again"] += len(took) - len(set(took))


@scenario("mixed-group", "P1", modes=RAFT)
async def mixed_group(x: ScenarioContext) -> None:
    """SDK and classic members join, leave and are killed, and so are leader and follower."""
    await _mixed(x)


@scenario("mixed-group-five", "P1", profile=Profile(node_count=5), modes=RAFT)
async def mixed_group_five(x: ScenarioContext) -> None:
    """The same on five nodes, led by node 4, which has no broker name of its own."""
    await _mixed(x, home=4)
