"""A session says each of its rows, and a reason where a peer has nothing to measure."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.peers import registry
from bench.peers.load_driver import drive
from bench.peers.peer import ConsumeResult, NotOfferedError, PeerFacts, PeerLoad, ProduceResult
from bench.plan import QUICK, sessions
from bench.session import Session, main

SCALE = replace(
    QUICK,
    seconds=0.01,
    warm_up_s=0.01,
    trial_s=0.01,
    failover_s=0.1,
    log_sizes_bytes=(1 << 20, 2 << 20, 1 << 50),
    restart_size_bytes=2 << 20,
).row()


class Fake:
    """Keeps counts; a leader that is killed stops to ack for a while."""

    def __init__(
        self, memory_share: float = 0.0, restart_share: float = 0.0, *, has_failover: bool = True
    ) -> None:
        self.facts = PeerFacts("fake", "none", "none", "none", memory_share, restart_share)
        self.events: list[str] = []
        self.message_count = 0
        self._has_failover = has_failover
        self._dead_until = 0.0

    def pids(self) -> dict[str, int]:
        return {}

    async def start(self, directory: str, *, topic_count: int = 1) -> None:
        self.events.append(f"start {topic_count}")

    async def _send(self, bodies: Sequence[bytes], topic: int) -> None:
        await asyncio.sleep(0)
        if asyncio.get_running_loop().time() < self._dead_until:
            raise ConnectionError
        self.message_count += len(bodies)

    async def produce(self, load: PeerLoad) -> ProduceResult:
        return await drive(self._send, load)

    async def consume(self) -> ConsumeResult:
        return ConsumeResult(self.message_count, 1024 * self.message_count, 0.5)

    async def kill_leader(self) -> float:
        if not self._has_failover:
            raise NotOfferedError("it has none")
        self._dead_until = asyncio.get_running_loop().time() + 0.05
        return asyncio.get_running_loop().time()

    async def restart(self) -> float:
        self.events.append("restart")
        return asyncio.get_running_loop().time()

    async def kill(self, *, is_of_all: bool) -> tuple[float, int]:
        self.events.append(f"kill {is_of_all}")
        return 0.5, 3 << 20

    async def stop(self) -> None:
        self.events.append("stop")


def cells(text: str) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in text.splitlines()]
    assert len({cell["row"] for cell in rows}) == len(rows)
    return {cell["row"]: cell for cell in rows}


@pytest.mark.long
def test_rates_are_of_every_size_and_mode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.session._FAILOVER_LEAD_S", 0.02)
    asyncio.run(Session(Fake(), str(tmp_path), SCALE).rates(with_failover=True))
    rows = cells(capsys.readouterr().out)
    for size in ("1 KiB", "100 B", "64 KiB"):
        assert rows[f"{size}, one in flight, p50"]["value"] > 0
        assert rows[f"{size}, 64 in flight"]["value"] > 0
        assert rows[f"{size}, batches"]["detail"]["batch_count"] in (100, 16)
    assert rows["1 KiB, batches, processor time of a million"]["value"] >= 0
    assert rows["1 KiB, consume from the start"]["value"] > 0
    detail = rows["1 KiB, at half of the rate of 64 in flight, p99"]["detail"]
    assert detail["rate_per_s"] == pytest.approx(rows["1 KiB, 64 in flight"]["value"] / 2, 0.01)
    assert rows["failover: kill to the next ack"]["value"] >= 0.02
    assert all(cell["value"] is not None for cell in rows.values())


def test_a_value_that_a_peer_lacks_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.session._FAILOVER_LEAD_S", 0.02)
    peer = Fake(has_failover=False)
    asyncio.run(Session(peer, str(tmp_path), SCALE).rates(with_failover=True))
    cell = cells(capsys.readouterr().out)["failover: kill to the next ack"]
    assert (cell["value"], cell["reason"]) == (None, "it has none")


def test_a_log_grows_step_by_step_and_not_beyond_the_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    peer = Fake()
    asyncio.run(Session(peer, str(tmp_path), SCALE).growth())
    rows = cells(capsys.readouterr().out)
    small, middle, large = (f"log of {size / (1 << 30):g} GiB" for size in SCALE["log_sizes_bytes"])
    assert rows[f"{small}, batches"]["value"] > 0
    assert rows[f"{middle}, restart"]["value"] >= 0
    assert peer.events == ["restart"]
    assert peer.message_count >= 2048
    assert "GiB of disk are needed" in rows[f"{large}, batches"]["reason"]
    assert f"{small}, restart" not in rows
    asyncio.run(Session(Fake(memory_share=1e9), str(tmp_path), SCALE).growth())
    rows = cells(capsys.readouterr().out)
    assert "GiB of memory to keep it" in rows[f"{middle}, restart"]["reason"]
    peer = Fake(restart_share=1e9)
    asyncio.run(Session(peer, str(tmp_path), SCALE).growth())
    rows = cells(capsys.readouterr().out)
    assert rows[f"{middle}, batches"]["value"] > 0
    assert "GiB of memory to start again with it" in rows[f"{middle}, restart"]["reason"]
    assert peer.events == []


def test_nodes_are_killed_with_few_and_with_many_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.session._CHECKPOINTED_S", 0)
    planned = list(sessions(QUICK, ["disk"], ["etcd", "quorumlog"], ["growth"]))
    assert [(one.peer, one.key_step) for one in planned if one.key_step] == [
        ("quorumlog", 100_000), ("quorumlog", 1),
    ]  # fmt: skip
    assert len({one.key for one in planned}) == 4
    peer = Fake()
    asyncio.run(Session(peer, str(tmp_path), SCALE).kills(peer, 1))
    rows = cells(capsys.readouterr().out)
    _, middle, large = (f"log of {size / (1 << 30):g} GiB" for size in SCALE["log_sizes_bytes"])
    assert peer.events == ["kill False", "kill True"]
    assert rows[f"{middle}, dense keys, SIGKILL of all"]["detail"] == {"read_mib": 3}
    reason = rows[f"{large}, dense keys, SIGKILL of the leader"]["reason"]
    assert "GiB of disk are needed" in reason


def test_a_peer_is_stopped_whatever_happens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    peer = Fake()
    entry = replace(registry.ENTRIES["quorumlog"], make=lambda: peer)
    monkeypatch.setitem(registry.ENTRIES, "quorumlog", entry)
    spec = {
        "scenario": "topics", "peer": "quorumlog", "round": 0, "topic_count": 7, "key_step": 0,
        "directory": str(tmp_path), "scale": SCALE,
    }  # fmt: skip
    asyncio.run(main(spec))
    assert cells(capsys.readouterr().out)["1 KiB, 64 in flight, 7 topics"]["value"] > 0
    assert peer.events == ["start 7", "stop"]
    with pytest.raises(AssertionError):
        asyncio.run(main({**spec, "scenario": "none"}))
    assert peer.events[-1] == "stop"
