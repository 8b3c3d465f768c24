"""Three etcd nodes on this machine, driven by a Python gRPC client as our own cluster is.

Owns starting and ending the processes and the load: transactions of many puts, several in flight
to the leader, and single puts one after the other. A transaction is etcd's atomic batch; requests
are encoded before the clock starts, which is to etcd's advantage.
"""

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from bench.peers.etcd_messages import message_classes
from bench.report import latency
from deploy.local_process import free_ports

NODE_COUNT = 3
PUTS_PER_TXN_MAX = 128  # etcd refuses more (--max-txn-ops).
_BINARY = "etcd"
_START_DEADLINE_S = 30.0
_STOP_DEADLINE_S = 10.0
_CALL_DEADLINE_S = 30.0
_BACKEND_QUOTA_BYTES = 16 << 30
_PREPARED_TXN_COUNT = 64
_TRIAL_S = 1.0
_IN_FLIGHT_TRIALS = (4, 16, 32)
_M = message_classes()


class EtcdMissingError(Exception):
    """There is no etcd on this machine."""

    def __str__(self) -> str:
        return "no etcd in PATH; install Debian's package etcd-server"


@dataclass(slots=True)
class EtcdCluster:
    """Three running processes."""

    directory: str
    addresses: list[str] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start all nodes; they are not ready yet."""
        binary = shutil.which(_BINARY)
        if binary is None:
            raise EtcdMissingError
        ports = free_ports(2 * NODE_COUNT)
        clients, peers = ports[:NODE_COUNT], ports[NODE_COUNT:]
        self.addresses = [f"127.0.0.1:{port}" for port in clients]
        cluster = ",".join(f"n{n}=http://127.0.0.1:{port}" for n, port in enumerate(peers))
        for n in range(NODE_COUNT):
            root = os.path.join(self.directory, f"n{n}")
            client, peer = f"http://127.0.0.1:{clients[n]}", f"http://127.0.0.1:{peers[n]}"
            command = [
                binary,
                *("--name", f"n{n}", "--data-dir", root),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
                *("--quota-backend-bytes", str(_BACKEND_QUOTA_BYTES), "--log-level", "error"),
            ]
            with open(os.path.join(self.directory, f"n{n}.log"), "wb") as log:
                self.processes.append(
                    subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
                )

    def stop(self) -> None:
        """End all nodes, by force when they do not go."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(_STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def etcd_cluster(directory: str) -> Iterator[EtcdCluster]:
    """Three nodes in a new directory below `directory`; both are gone afterwards."""
    root = tempfile.mkdtemp(prefix="etcd-", dir=directory)
    cluster = EtcdCluster(root)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(root)


async def measure(
    cluster: EtcdCluster,
    *,
    seconds: float,
    serial_seconds: float,
    puts_per_txn: int,
    value_size_bytes: int,
    on_progress: Callable[[float], None],
) -> dict[str, Any]:
    """Drive the leader: transactions for `seconds`, then single puts; one row of results.

    How many are in flight is chosen by short trials, so that etcd runs at what suits it best.
    """
    assert 1 <= puts_per_txn <= PUTS_PER_TXN_MAX, f"{puts_per_txn} puts in a transaction"
    address, version = await _find_leader(cluster.addresses)
    async with grpc.aio.insecure_channel(address) as channel:
        load = _Load(channel, puts_per_txn=puts_per_txn, value_size_bytes=value_size_bytes)
        rates = {}
        for in_flight in _IN_FLIGHT_TRIALS:
            done, took_s, _ = await load.run_txns(in_flight, _TRIAL_S, lambda _: None)
            rates[in_flight] = done / took_s
        in_flight = max(rates, key=lambda count: rates[count])
        done, took_s, latencies_ms = await load.run_txns(in_flight, seconds, on_progress)
        serial_ms = await load.run_puts(serial_seconds)
    puts = done * puts_per_txn
    return {
        "peer": "etcd",
        "version": version,
        "node_count": NODE_COUNT,
        "puts_per_txn": puts_per_txn,
        "in_flight_count": in_flight,
        "seconds": round(took_s, 3),
        "acked_count": puts,
        "acked_msgs_per_s": round(puts / took_s, 1),
        "acked_mb_per_s": round(puts * value_size_bytes / took_s / 1e6, 2),
        "batch_latency": latency(latencies_ms),
        "serial_latency": latency(serial_ms),
    }


class _Load:
    def __init__(self, channel: Any, *, puts_per_txn: int, value_size_bytes: int) -> None:
        self._txn = channel.unary_unary(
            "/etcdserverpb.KV/Txn", response_deserializer=_M["TxnResponse"].FromString
        )
        self._put = channel.unary_unary(
            "/etcdserverpb.KV/Put", response_deserializer=_M["PutResponse"].FromString
        )
        numbers = itertools.count()

        def put() -> Any:
            key = b"bench/%012d" % next(numbers)
            return _M["PutRequest"](key=key, value=os.urandom(value_size_bytes))

        self._puts = [put().SerializeToString() for _ in range(_PREPARED_TXN_COUNT)]
        self._txns = [
            _M["TxnRequest"](
                success=[_M["RequestOp"](request_put=put()) for _ in range(puts_per_txn)]
            ).SerializeToString()
            for _ in range(_PREPARED_TXN_COUNT)
        ]

    async def run_txns(
        self, in_flight: int, seconds: float, on_progress: Callable[[float], None]
    ) -> tuple[int, float, list[float]]:
        """Transactions done, seconds it took, and the latency of each in milliseconds."""
        latencies_ms: list[float] = []
        txns = itertools.cycle(self._txns)
        began = time.perf_counter()

        async def send() -> None:
            while (now := time.perf_counter()) - began < seconds:
                answer = await self._txn(next(txns), timeout=_CALL_DEADLINE_S)
                assert answer.succeeded, "etcd refused a transaction without conditions"
                latencies_ms.append((time.perf_counter() - now) * 1e3)
                on_progress(time.perf_counter() - began)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(send())
        return len(latencies_ms), time.perf_counter() - began, latencies_ms

    async def run_puts(self, seconds: float) -> list[float]:
        """Single puts, one at a time; milliseconds of each."""
        latencies_ms = []
        puts = itertools.cycle(self._puts)
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            await self._put(next(puts), timeout=_CALL_DEADLINE_S)
            latencies_ms.append((time.perf_counter() - now) * 1e3)
        return latencies_ms


async def _find_leader(addresses: list[str]) -> tuple[str, str]:
    """Wait until one node says it leads; its address and version. A follower would forward."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while True:
        for address in addresses:
            async with grpc.aio.insecure_channel(address) as channel:
                status = channel.unary_unary(
                    "/etcdserverpb.Maintenance/Status",
                    request_serializer=_M["StatusRequest"].SerializeToString,
                    response_deserializer=_M["StatusResponse"].FromString,
                )
                try:
                    answer = await status(_M["StatusRequest"](), timeout=1.0)
                except grpc.aio.AioRpcError:
                    continue  # Not up yet; the deadline below bounds it.
                if answer.leader and answer.leader == answer.header.member_id:
                    return address, answer.version
        if time.monotonic() > deadline:
            raise TimeoutError(f"etcd elected no leader within {_START_DEADLINE_S} s")
        await asyncio.sleep(0.05)
