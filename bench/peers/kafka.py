"""Three Kafka brokers that are controllers as well (KRaft), driven by confluent-kafka.

Owns the driving of Kafka. With acks=all an ack means that every replica in sync, at least two, has
the message in its page cache: Kafka syncs nothing before it acks, unless it is set to sync each
message. Delivery reports come on a thread of ours, which polls, and go to the event loop once a
batch.
"""

import asyncio
import base64
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.peers.java_programs import java_words, run_java, write_properties
from bench.peers.load_driver import drive
from bench.peers.peer import (
    ConsumeResult,
    PeerFacts,
    PeerFailedError,
    PeerLoad,
    ProduceResult,
)
from bench.peers.processes import Processes, ProcessPeer
from deploy.local_process import free_ports

_NODE_COUNT: Final = 3
_PARTITION_COUNT: Final = 4
_ANY_PARTITION: Final = -1
_TIMEOUT_S: Final = 30.0
_FAILOVER_TIMEOUT_S: Final = 3.0
_POLL_S: Final = 0.1
_TOPICS_AT_ONCE: Final = 100
_TOPICS_TIMEOUT_S: Final = 120.0
_CONSUME_COUNT: Final = 1_000
_LINGER_MS: Final = 5
"""The default, for loads with several messages at a time: eight times the rate of none, with 64 in
flight. A message that comes alone waits for no other."""
# As the start script of Kafka has them.
_JAVA_OPTIONS: Final = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)  # fmt: skip


class KafkaPeer(ProcessPeer):
    """Three combined nodes; each topic has three replicas."""

    facts = PeerFacts(
        name="kafka",
        durability="in the page cache of all in sync, at least 2 of 3; never synced for an ack",
        client="confluent-kafka (librdkafka in Python)",
        settings="acks=all, min.insync.replicas=2, idempotent, "
        f"linger.ms={_LINGER_MS} with several in flight, else 0",
    )

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        super().__init__()
        self._servers = ""
        self._admin: Any = None

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Format and start the brokers, and make the topics."""
        self._started = Processes(directory)
        ports = free_ports(2 * _NODE_COUNT)
        listen, control = ports[:_NODE_COUNT], ports[_NODE_COUNT:]
        self._servers = ",".join(f"127.0.0.1:{port}" for port in listen)
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(control))
        paths = [os.path.join(directory, f"n{n}.properties") for n in range(_NODE_COUNT)]
        for n, path in enumerate(paths):
            root = os.path.join(directory, f"n{n}")
            write_properties(path, _properties(n, voters, listen[n], control[n], root))
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        arguments = ["format", "-t", cluster_id, "-c"]
        await asyncio.gather(*(
            run_java("kafka", directory, "kafka.tools.StorageTool", [*arguments, path])
            for path in paths
        ))  # fmt: skip
        for n, path in enumerate(paths):
            words = java_words("kafka", directory, _JAVA_OPTIONS, "kafka.Kafka", [path])
            self._processes.start(f"n{n}", words)
        await self._connect()
        await asyncio.to_thread(self._make_topics, topic_count)
        await self._wait_led(_topic(topic_count - 1))

    async def _connect(self) -> None:
        """Wait until all brokers are known."""
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})

        await self._until(
            lambda: len(self._metadata().brokers) == _NODE_COUNT, "not all brokers known"
        )

    def _metadata(self, topic: str | None = None) -> Any:
        return self._admin.list_topics(topic, timeout=_TIMEOUT_S)

    async def _until(self, is_so: Callable[[], bool], what: str) -> None:
        from confluent_kafka import KafkaException

        await self._processes.until(lambda: asyncio.to_thread(is_so), what, KafkaException)

    async def _wait_led(self, topic: str) -> None:
        def is_led() -> bool:
            partitions = self._metadata(topic).topics[topic].partitions.values()
            return all(p.leader >= 0 and len(p.isrs) == _NODE_COUNT for p in partitions)

        await self._until(is_led, f"{topic} has no leaders")

    def _make_topics(self, count: int) -> None:
        from confluent_kafka.admin import NewTopic

        partition_count = _PARTITION_COUNT if count == 1 else 1
        for lo in range(0, count, _TOPICS_AT_ONCE):
            numbers = range(lo, min(lo + _TOPICS_AT_ONCE, count))
            made = self._admin.create_topics(
                [NewTopic(_topic(n), partition_count, _NODE_COUNT) for n in numbers],
                operation_timeout=_TOPICS_TIMEOUT_S,
                request_timeout=_TOPICS_TIMEOUT_S,
            )
            for name, future in made.items():
                error = future.exception(_TOPICS_TIMEOUT_S)
                if error is not None:
                    raise PeerFailedError(f"topic {name} was not made: {error}")

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Send and await the delivery reports; to one partition if errors are tolerated, so that a
        dead leader is met by every message."""
        timeout_s = _FAILOVER_TIMEOUT_S if load.tolerates_errors else _TIMEOUT_S
        is_alone = load.batch_count == load.in_flight_count == 1 and not load.rate_per_s
        publisher = _Publisher({
            "bootstrap.servers": self._servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0 if is_alone else _LINGER_MS,
            "message.timeout.ms": round(timeout_s * 1e3),
            "socket.nagle.disable": True,
            "log_level": 0,
        })  # fmt: skip
        partition = 0 if load.tolerates_errors else _ANY_PARTITION

        async def send(bodies: Sequence[bytes], topic: int) -> None:
            await publisher.send(_topic(topic), partition, bodies)

        try:
            return await drive(send, load)
        finally:
            await asyncio.to_thread(publisher.close)

    async def consume(self) -> ConsumeResult:
        """Read all partitions, up to a thousand messages at a time."""
        return await asyncio.to_thread(self._consume)

    def _consume(self) -> ConsumeResult:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        topic = _topic(0)
        consumer = Consumer({
            "bootstrap.servers": self._servers, "group.id": "bench", "log_level": 0,
            "enable.auto.commit": False,
        })  # fmt: skip
        try:
            numbers = self._metadata(topic).topics[topic].partitions
            partitions = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers]
            ends = [consumer.get_watermark_offsets(one, timeout=_TIMEOUT_S) for one in partitions]
            wanted = sum(hi - lo for lo, hi in ends)
            count, size_bytes, began_s = 0, 0, time.monotonic()
            consumer.assign(partitions)
            while count < wanted:
                # It waits until it has as many as it was asked for.
                asked_count = min(_CONSUME_COUNT, wanted - count)
                messages = consumer.consume(asked_count, timeout=_TIMEOUT_S)
                if not messages:
                    raise PeerFailedError(f"Kafka gave {count} messages of {wanted}")
                for message in messages:
                    if (error := message.error()) is not None:
                        raise PeerFailedError(f"Kafka does not give a message: {error}")
                    size_bytes += len(message.value())
                count += len(messages)
            return ConsumeResult(count, size_bytes, time.monotonic() - began_s)
        finally:
            consumer.close()

    async def kill_leader(self) -> float:
        """SIGKILL the broker that leads the partition of a load with a failover."""
        metadata = await asyncio.to_thread(self._metadata, _topic(0))
        return self._processes.kill(f"n{metadata.topics[_topic(0)].partitions[0].leader}")

    async def restart(self) -> float:
        """Stop in order and start; wait until the first topic has leaders."""
        moment_s = await self._processes.restart()
        await self._wait_led(_topic(0))
        return moment_s

    async def stop(self) -> None:
        """End the brokers."""
        self._admin = None
        await super().stop()


class _Publisher:
    """A producer of confluent-kafka for one load of an event loop."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        self._producer: Any = Producer(settings)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve_reports, name="reports")
        self._thread.start()

    def _serve_reports(self) -> None:
        while not self._is_closed:
            self._producer.poll(_POLL_S)

    def send(self, topic: str, partition: int, bodies: Sequence[bytes]) -> "asyncio.Future[None]":
        """Hand the bodies over; the future ends with the last report, or with its error."""
        batch = _SentBatch(len(bodies))
        for body in bodies:
            self._producer.produce(topic, body, partition=partition, on_delivery=batch.report)
        return batch.acked

    def close(self) -> None:
        """End the thread and the connections; all reports have come."""
        self._is_closed = True
        self._thread.join()
        self._producer.purge()
        self._producer.flush(_TIMEOUT_S)


class _SentBatch:
    """The reports of one batch, which come on the thread that polls."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.acked: asyncio.Future[None] = self._loop.create_future()
        self._left = count
        self._error: Any = None

    def report(self, error: Any, _message: Any) -> None:
        self._error = self._error or error
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self.acked.done():
            return  # The load was cancelled.
        if self._error is None:
            self.acked.set_result(None)
        else:
            self.acked.set_exception(PeerFailedError(f"Kafka did not ack: {self._error}"))


def _topic(number: int) -> str:
    return f"bench-{number}"


def _properties(number: int, voters: str, listen: int, control: int, root: str) -> dict[str, str]:
    """Return the settings of one node."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{listen},CONTROLLER://127.0.0.1:{control}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{listen}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": root,
        "min.insync.replicas": "2",
        "default.replication.factor": str(_NODE_COUNT),
        "offsets.topic.replication.factor": str(_NODE_COUNT),
        "auto.create.topics.enable": "false",
    }
