"""Whole worlds: fresh seeds pass, each is one run anywhere, and what is wrong is found."""

import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from chaos.errors import NotSoError
from chaos.verdict import caught_up

from simulation.plan import (
    KINDS,
    LEADER,
    OF_MASTER_SLAVE,
    OF_SYNCED_RAFT,
    Case,
    Fault,
    Options,
)
from simulation.runner import shrink
from simulation.trial import Trial, check_end
from simulation.world import LogLine, World
from store.errors import StoreFullError
from tests.two_processes import in_two_processes, results_of, run_module

SEED_COUNT = 6
LONG_S = 8
DEFECTS = "tests.simulation.defects"


def command(*words: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """Run the command line of the simulation."""
    long = () if "--case" in words else ("--long", LONG_S)
    return run_module("simulation", *words, *long, hash_seed=hash_seed)


@pytest.mark.long
@pytest.mark.parametrize("share", ["one", "other"])
def test_fresh_worlds(share: str) -> None:
    base = int.from_bytes(os.urandom(5), "big")
    done = command("run", "--seeds", f"{base}..{base + SEED_COUNT - 1}")
    assert done.returncode == 0, f"the {share} share:\n{done.stdout}{done.stderr}"
    assert f"{SEED_COUNT} passed, 0 failed" in done.stdout


@pytest.mark.long
def test_seed_is_one_run_in_every_process() -> None:
    def trace(hash_seed: str) -> tuple[str, ...]:
        done = command("replay", "12", hash_seed=hash_seed)
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.search(r"(\d+) events, (\d+) faults, (\d+) acked, trace (\w+)", done.stdout)
        assert found is not None, done.stdout
        return found.groups()

    first = trace("1")
    assert int(first[0]) > 10_000
    assert int(first[1]) > 0
    assert int(first[2]) > 20
    assert trace("2") == first


def a_case(*kinds: str, replication: str = "raft") -> Case:
    """Three nodes, a light load, and one fault after the other."""
    transport = "auto" if replication == "raft" else "grpc"
    options = Options(
        seed=5, node_count=3, duration_ms=5_000, client_count=1, rate_per_s=3,
        body_size_bytes_max=64, transport=transport, flush="sync", replication=replication,
    )  # fmt: skip
    faults = [Fault(1_500 + 100 * n, kind, LEADER, 800, 7) for n, kind in enumerate(kinds)]
    return Case(options, tuple(faults))


OF_EACH_KIND = [
    pytest.param(kind, replication, marks=[pytest.mark.long] * (kind != "kill"))
    for replication in ("raft", "sync_master")
    for kind in KINDS
    if kind not in (OF_MASTER_SLAVE if replication == "raft" else OF_SYNCED_RAFT)
]


@pytest.mark.parametrize(("kind", "replication"), OF_EACH_KIND)
def test_fault_of_each_kind_is_done_and_survived(
    kind: str, replication: str, tmp_path: Path
) -> None:
    path, case = tmp_path / "case.json", a_case(kind, replication=replication)
    path.write_text(json.dumps(case.to_json()))
    assert Case.from_json(json.loads(path.read_text())) == case
    done = command("replay", "--case", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"events, 1 faults, [1-9]\d* acked", done.stdout), done.stdout
    ended = "quorumlog: the process ends because a sync failed" if kind == "sync_fails" else ""
    assert ended in done.stderr
    assert bool(ended) == bool(done.stderr)


def test_failing_case_is_made_small() -> None:
    """The failure needs a kill and a cut; whatever else there is goes."""

    def fails(case: Case) -> bool:
        return {"kill", "cut"} <= {fault.kind for fault in case.faults}

    whole = a_case("pause", "kill", "flap", "stop", "slow_link", "cut", "kill", "pause")
    small = shrink(whole, fails, lambda text: None)
    assert sorted(fault.kind for fault in small.faults) == ["cut", "kill"]
    last = small.faults[-1]
    assert small.options.duration_ms == last.at_ms + last.duration_ms + 500


@pytest.mark.long
def test_a_leader_that_acknowledges_what_only_its_own_disk_has_is_found() -> None:
    (problem,) = results_of(DEFECTS, "acknowledged_before_quorum")
    assert problem
    assert results_of(DEFECTS, "none") == [""], "the case fails without the defect"


@pytest.mark.long
@pytest.mark.parametrize("faults", ["whole", "failing", "harming"])
def test_disks_fail_over_many_seeds(faults: str) -> None:
    problems = in_two_processes(DEFECTS, "none", faults, cases=range(100, 120))
    assert not any(problems), problems


@pytest.mark.long
@pytest.mark.parametrize(
    ("defect", "seed_count"),
    [("no_sync", 2), ("no_directory_sync", 6), ("no_vote_sync", 4), ("no_log_sync", 16)],
)
def test_missing_syncs_are_found(defect: str, seed_count: int) -> None:
    assert any(in_two_processes(DEFECTS, defect, "whole", cases=range(1, seed_count + 1)))


@pytest.mark.parametrize(("role", "term_name"), [("leader", "term"), ("master", "epoch")])
def test_two_leaders_of_one_term_are_a_failure(role: str, term_name: str) -> None:
    with World(1) as world:
        trial = Trial(a_case("kill"), world)
        with pytest.raises(AssertionError, match="nothing proves I1"):
            trial.check_leaders()
        for name, term in (("host1/node1", 1), ("host2/node2", 2), ("host3/node3", 2)):
            fields = {"event": "role", "role": role, term_name: term}
            world.log.append(LogLine(0, name, "info", fields))
        with pytest.raises(AssertionError, match="both lead term 2"):
            trial.check_leaders()


def test_judge_waits_by_the_clock_of_the_world() -> None:
    status = SimpleNamespace(commit_index=7, applied_index=6, standing="full", term=1)
    client: Any = SimpleNamespace(admin=SimpleNamespace(node_status=AsyncMock(return_value=status)))

    async def wait() -> int:
        return await caught_up(client, (1,), 60.0)

    with World(1) as world:
        process = world.add_machine().run("clients", wait)
        world.run_s(59)
        assert process.is_alive
        world.run_s(2)
        assert isinstance(process.error, NotSoError)


def test_end_without_a_reason_is_a_failure() -> None:
    with World(1) as world:
        process = world.add_machine().run("node", AsyncMock(return_value=70))
        world.run_s(1)
        with pytest.raises(AssertionError, match="exit code 70"):
            check_end(process, {"disk_full"})


def test_full_disk_is_a_reason_only_where_a_fault_fills_one() -> None:
    with World(1) as world:
        full = AsyncMock(side_effect=StoreFullError("data", 8, 7))
        process = world.add_machine().run("node", full)
        world.run_s(1)
        check_end(process, {"disk_full"})
        with pytest.raises(StoreFullError):
            check_end(process, {"kill"})
