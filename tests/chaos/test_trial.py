"""Trials on a real cluster in which something is wrong that must not pass, one after the other."""

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from chaos import trial
from chaos.errors import NotSoError
from chaos.gates import Gates
from chaos.profile import Profile, ScenarioOptions
from chaos.scenario import ALL_MODES, Body, Scenario, ScenarioContext
from chaos.scenarios import disk, messages
from chaos.target import Target
from chaos.trial import Trial, TrialResult

from deploy.local import LocalCluster

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    local = LocalCluster.create(tmp_path_factory.mktemp("trials") / "c")
    own_target = Target(local, local.bootstrap)
    own_target.start()
    try:
        own_target.wait_ready()
        yield own_target
        own_target.let_stop()
    finally:
        assert local.stop() == []
    assert own_target.unexpected_ends() == []


def run(target: Target, body: Body, *, judges_times: bool = False) -> TrialResult:
    scenario = Scenario("planted", (), "Planted.", body, Profile(), ALL_MODES, False, 0.02)
    topic = f"trial-{time.time_ns():x}"
    options = ScenarioOptions(1, judges_times=judges_times)
    return asyncio.run(Trial(scenario, target, options, 1, topic).run())


def test_a_follower_that_dies_by_itself_does_not_pass(target: Target) -> None:
    async def body(x: ScenarioContext) -> None:
        victim = await x.follower()
        os.kill(await x.do(x.target.pid, victim), signal.SIGABRT)
        await x.until("it is dead", lambda: not x.target.local.is_alive(victim))
        await x.acked()
        x.prove("the cluster goes on", True)

    result = run(target, body)
    assert result.verdict == "failed"
    assert result.why.startswith("I17: node ")
    assert "ended with -6, which was not expected" in result.why
    assert result.violations == [result.why]
    assert result.acked_count > 0


def test_an_end_that_was_asked_for_passes_and_a_slow_one_does_not(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(x: ScenarioContext) -> None:
        old = await x.leader()
        x.leader_lost()
        await x.do(x.target.kill, old)
        await x.new_leader(old)
        x.prove(f"node {old} is dead", not x.target.local.is_alive(old))

    result = run(target, body)
    assert (result.verdict, result.why) == ("passed", "")
    assert len(result.failovers_ms) == 1
    assert len(result.memory_size_bytes) == 3
    monkeypatch.setattr(trial, "gates_of", lambda _: Gates(0.001, 0.001, 0.001, 0.001))
    result = run(target, body)
    assert (result.verdict, [text[:4] for text in result.late]) == ("passed", ["I15:", "I15:"])
    result = run(target, body, judges_times=True)
    assert result.verdict == "failed"
    assert [text[:4] for text in result.violations] == ["I15:", "I15:"]


def test_disks_with_room_and_links_that_change_nothing_prove_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScenarioContext, "linger", lambda *_: asyncio.sleep(0))

    async def body(x: ScenarioContext) -> None:
        topic = f"{x.load.clients.topic}-full"
        await x.load.clients.client.admin.create_topic(topic, queue_count=1)
        with pytest.raises(NotSoError, match="no append was refused"):
            await disk.is_refused(replace(x, options=replace(x.options, time_scale=0.01)), topic)
        counts = dict.fromkeys(x.target.node_ids, 0.0)
        assert not await x.do(disk.leader_refuses, x, counts)
        monkeypatch.setattr(x.target.interceptor, "set", lambda **_: None)
        said = itertools.count(0, 9)
        monkeypatch.setattr(x.target.interceptor, "counts", lambda: Counter(flipped=next(said)))
        await messages.flipped_bits(x)

    result = run(target, body)
    assert (
        result.why == "the fault did not bite: not so: 0 frames of all were refused, 9 were changed"
    )
