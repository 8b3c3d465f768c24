"""Three etcd nodes, driven by a Python gRPC client: puts, and transactions of many puts.

Owns the driving of etcd. A transaction is its atomic batch. The driver encodes the values of a
load, as ours does; keys are numbered, so that a range in key order is the order of sending.
"""

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc.aio

from bench.peers.etcd_messages import message_classes
from bench.peers.load_driver import drive
from bench.peers.peer import (
    ConsumeResult,
    NotOfferedError,
    PeerFacts,
    PeerLoad,
    ProduceResult,
)
from bench.peers.processes import Processes, ProcessPeer
from deploy.cache import place
from deploy.local_process import free_ports

PUTS_PER_TXN_MAX: Final = 128  # etcd refuses more (--max-txn-ops).
_REQUEST_SIZE_BYTES_MAX: Final = 1_500_000  # Likewise (--max-request-bytes, less the framing).
_BINARY: Final = "etcd"
_NODE_COUNT: Final = 3
_BACKEND_QUOTA_SIZE_BYTES: Final = 32 << 30
_SNAPSHOT_COUNT: Final = 10_000
"""The default before 3.2 and since 3.6. Entries since the last snapshot stay in memory: with 3.4's
100,000 each node would hold 10 GB of transactions of 100 KiB, and the machine stands still.
"""
_CALL_DEADLINE_S: Final = 30.0
_FAILOVER_CALL_DEADLINE_S: Final = 3.0
_PAGE_COUNT: Final = 1_000
_PAGE_SIZE_BYTES_MAX: Final = 64 << 20
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 2 * _PAGE_SIZE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.enable_http_proxy", 0),
)
_M: Final = message_classes()


class EtcdPeer(ProcessPeer):
    """Three processes; the client talks to the leader, as long as it lives."""

    facts = PeerFacts(
        name="etcd",
        durability="synced on 2 of 3",
        client="gRPC (Python, asyncio)",
        settings=f"--quota-backend-bytes {_BACKEND_QUOTA_SIZE_BYTES} "
        f"--snapshot-count {_SNAPSHOT_COUNT}",
        # Keys are in memory, values in a map of the file, which is 2.4 times their size.
        # Appends touch the end of it only.
        memory_share=1.5,
        # A start reads all of it. Three files that do not fit push each other out, without end.
        restart_memory_share=7.0,
    )

    def __init__(self) -> None:
        """Create the peer; no process runs yet."""
        super().__init__()
        self._addresses: dict[str, str] = {}
        self._channels: dict[str, Any] = {}
        self._leader = ""
        self._numbers = itertools.count()

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        """Start the nodes; a topic is a prefix of keys, and needs no preparation."""
        binary = str(place("etcd") / _BINARY)
        ports = free_ports(2 * _NODE_COUNT)
        clients, peers = ports[:_NODE_COUNT], ports[_NODE_COUNT:]
        cluster = ",".join(f"n{n}=http://127.0.0.1:{port}" for n, port in enumerate(peers))
        self._started = Processes(directory)
        for n in range(_NODE_COUNT):
            client, peer = f"http://127.0.0.1:{clients[n]}", f"http://127.0.0.1:{peers[n]}"
            self._addresses[f"n{n}"] = f"127.0.0.1:{clients[n]}"
            self._processes.start(f"n{n}", [
                binary,
                *("--name", f"n{n}", "--data-dir", os.path.join(directory, f"n{n}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
                *("--quota-backend-bytes", str(_BACKEND_QUOTA_SIZE_BYTES)),
                *("--snapshot-count", str(_SNAPSHOT_COUNT), "--log-level", "error"),
            ])  # fmt: skip
        await self._connect()

    async def _connect(self) -> None:
        """Wait until one node reports that it leads. A follower would forward, which costs time."""
        for name, address in self._addresses.items():
            self._channels[name] = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        await self._processes.until(self._find_leader, "etcd elected no leader")

    async def _find_leader(self) -> bool:
        for name in self._addresses:
            try:
                answer = await self._call(name, "Maintenance/Status", "Status")(
                    _M["StatusRequest"](), timeout=1.0
                )
            except grpc.aio.AioRpcError:
                continue  # Not up yet; the caller has the deadline.
            if answer.leader and answer.leader == answer.header.member_id:
                self._leader = name
                return True
        return False

    def _call(self, name: str, method: str, message: str) -> Any:
        return self._channels[name].unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=_M[f"{message}Request"].SerializeToString,
            response_deserializer=_M[f"{message}Response"].FromString,
        )

    async def produce(self, load: PeerLoad) -> ProduceResult:
        """Send puts or transactions to the leader; if errors are tolerated, to any live node."""
        if load.batch_count > PUTS_PER_TXN_MAX:
            raise NotOfferedError(f"etcd takes at most {PUTS_PER_TXN_MAX} puts in a transaction")
        if load.batch_count * load.body_size_bytes > _REQUEST_SIZE_BYTES_MAX:
            raise NotOfferedError(
                f"etcd takes at most {_REQUEST_SIZE_BYTES_MAX} bytes in a request"
            )
        names = itertools.cycle(self._addresses) if load.tolerates_errors else None
        deadline_s = _FAILOVER_CALL_DEADLINE_S if load.tolerates_errors else _CALL_DEADLINE_S
        puts = {name: self._call(name, "KV/Put", "Put") for name in self._addresses}
        txns = {name: self._call(name, "KV/Txn", "Txn") for name in self._addresses}

        async def send(bodies: Sequence[bytes], topic: int) -> None:
            name = next(names) if names is not None else self._leader
            requests = [
                _M["PutRequest"](key=b"%05d/%012d" % (topic, next(self._numbers)), value=body)
                for body in bodies
            ]
            if len(requests) == 1:
                await puts[name](requests[0], timeout=deadline_s)
                return
            request = _M["TxnRequest"](
                success=[_M["RequestOp"](request_put=put) for put in requests]
            )
            answer = await txns[name](request, timeout=deadline_s)
            assert answer.succeeded, "etcd refused a transaction without conditions"

        return await drive(send, load)

    async def consume(self) -> ConsumeResult:
        """Read pages of the prefix in key order, from the leader."""
        call = self._call(self._leader, "KV/Range", "Range")
        count, size_bytes, began_s = 0, 0, time.monotonic()
        key, limit = b"%05d/" % 0, _PAGE_COUNT
        while True:
            answer = await call(
                _M["RangeRequest"](key=key, range_end=b"%05d0" % 0, limit=limit),
                timeout=_CALL_DEADLINE_S,
            )
            count += len(answer.kvs)
            page_size_bytes = sum(len(one.value) for one in answer.kvs)
            size_bytes += page_size_bytes
            if not answer.more:
                return ConsumeResult(count, size_bytes, time.monotonic() - began_s)
            key = answer.kvs[-1].key + b"\0"
            mean_size_bytes = max(page_size_bytes // len(answer.kvs), 1)
            limit = max(1, min(_PAGE_COUNT, _PAGE_SIZE_BYTES_MAX // mean_size_bytes))

    async def kill_leader(self) -> float:
        """SIGKILL the leader's process."""
        return self._processes.kill(self._leader)

    async def restart(self) -> float:
        """Stop in order and start."""
        await self._disconnect()
        moment_s = await self._processes.restart()
        await self._connect()
        return moment_s

    async def stop(self) -> None:
        """End client and nodes."""
        await self._disconnect()
        await super().stop()

    async def _disconnect(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
