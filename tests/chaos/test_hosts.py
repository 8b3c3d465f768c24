"""Runs on hosts: their names, what is left of ended ones, abilities, gates; one whole run.

All but the last need no rights.
"""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import hosts.scenarios  # noqa: F401  Registers them.
import pytest
from chaos.errors import ChaosError, NotPossibleHereError, NotSoError
from chaos.percentiles import Percentiles
from chaos.profile import ScenarioOptions
from hosts import abilities, limits
from hosts.abilities import Ability, abilities_table, find_abilities
from hosts.campaign import HostCampaign
from hosts.fabric.network import CLIENTS, Host, HostNetwork
from hosts.latencies import COUNT_MIN, LatencyGate, append_latencies
from hosts.namespaces import (
    RunPlace,
    command,
    is_stale,
    remove_stale_directories,
    run_name,
    stale_in,
)
from hosts.registry import HOST_SCENARIOS, host_profile

from checkers.history import AppendCall, Kind, Operation
from raft.errors import Outcome
from tests import missing
from tests.chaos.test_slice import END_TIMEOUT_MS, RUN, TIMEOUT_S, nodes_and
from tests.patience import wait_for


def ended_name() -> str:
    """Return the name of a run whose process has ended."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        name = run_name(process.pid)
        assert not is_stale(name)
    return name


def test_only_directories_of_ended_runs_are_stale(tmp_path: Path) -> None:
    ended, own = ended_name(), run_name(os.getpid())
    pid, started = own.removeprefix("ql-").split("-")
    later = f"ql-{pid}-{int(started) + 1}"  # Another process had the same number.
    for name in (ended, own, later, "ql-1", "ql-x-1", "systemd", "ql-1-2-3", "a ql-1-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "ql-1-1").write_text("a file")
    stale = stale_in([tmp_path, tmp_path / "missing"])
    assert {path.name for path in stale} == {ended, later}


def test_control_groups_of_ended_runs_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    ended, own = ended_name(), run_name(os.getpid())
    for name in (ended, own, "another"):
        (tmp_path / "cpu" / name / "123").mkdir(parents=True)
    (tmp_path / "blkio" / ended).mkdir(parents=True)
    assert limits.remove_stale() == []
    assert {one.name for one in (tmp_path / "cpu").iterdir()} == {own, "another"}
    assert not any((tmp_path / "blkio").iterdir())
    left = tmp_path / "cpu" / ended
    left.mkdir()
    (left / "busy").write_text("")
    (complaint,) = limits.remove_stale()
    assert complaint.startswith(f"{left}: ")


@pytest.mark.parametrize("is_unified", [False, True])
def test_limits_are_written_as_each_kind_of_hierarchy_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_unified: bool
) -> None:
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    if is_unified:
        (tmp_path / "cgroup.controllers").write_text("cpu io")
    else:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "blkio").mkdir()
    process = limits.ProcessLimits("ql-1-1", 42)
    process.core_share(0.2)
    process.writes_per_s("7:1", 25)
    if is_unified:
        group = tmp_path / "ql-1-1" / "42"
        files = {"cpu.max": "20000 100000", "io.max": "7:1 wiops=25", "cgroup.procs": "42"}
        assert (tmp_path / "ql-1-1" / "cgroup.subtree_control").read_text() == "+io"
        assert {one.name: one.read_text() for one in group.iterdir()} == files
        return
    cpu, blkio = (tmp_path / name / "ql-1-1" / "42" for name in ("cpu", "blkio"))
    files = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "20000", "cgroup.procs": "42"}
    assert {one.name: one.read_text() for one in cpu.iterdir()} == files
    files = {"blkio.throttle.write_iops_device": "7:1 25", "cgroup.procs": "42"}
    assert {one.name: one.read_text() for one in blkio.iterdir()} == files


def test_a_limit_that_the_kernel_refuses_is_not_possible_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    with pytest.raises(NotPossibleHereError, match="no control group for cpu: "):
        limits.ProcessLimits("ql-1-1", 42).core_share(0.2)


def test_a_command_that_fails_says_what_and_why() -> None:
    with pytest.raises(ChaosError, match=r"^sh -c echo no >&2; exit 3: no; "):
        command("sh", "-c", "echo no >&2; exit 3")
    with pytest.raises(ChaosError, match="there is no command no-such-command"):
        command("no-such-command")
    assert command("cat", text="given") == "given"


def test_a_run_refuses_the_mounts_of_the_machine(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match="has the mounts of the one that started it"):
        RunPlace(tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_abilities_are_tried_and_a_missing_one_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> str:
        raise NotPossibleHereError("the kernel has no such thing")

    def failing() -> str:
        return command("sh", "-c", "echo not permitted >&2; exit 1")

    probes = {"a": ("all", lambda: "done"), "b": ("some", absent), "c": ("some", failing)}
    monkeypatch.setattr(abilities, "_PROBES", probes)
    machine_abilities = find_abilities()
    assert machine_abilities["a"] == Ability("a", "all", True, "done")
    assert machine_abilities["b"] == Ability("b", "some", False, "the kernel has no such thing")
    assert machine_abilities["c"] == Ability("c", "some", False, "not permitted")
    assert list(find_abilities("b")) == ["b"]
    head, *rows = abilities_table(machine_abilities).splitlines()
    assert head.split() == ["ability", "here", "used", "for", "detail"]
    assert [row.split()[:2] for row in rows] == [["a", "yes"], ["b", "no"], ["c", "no"]]


def test_scenarios_need_abilities_that_are_tried() -> None:
    for scenario in HOST_SCENARIOS.values():
        profile = host_profile(scenario.profile)
        assert set(profile.needs) <= set(abilities._PROBES), scenario.name
        assert len(profile.clock_offsets_s) <= profile.node_count


def test_the_table_of_hosts_names_every_scenario_and_no_other() -> None:
    text = (RUN.parent / "README.md").read_text("utf-8")
    table = text.partition("## Hosts, not processes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(HOST_SCENARIOS)


async def test_a_scenario_that_the_machine_cannot_do_is_not_run_and_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> str:
        raise NotPossibleHereError("no control groups")

    monkeypatch.setattr(abilities, "_PROBES", {"slow-cores": ("some", absent)})
    shown: list[str] = []
    campaign = HostCampaign(ScenarioOptions(1), tmp_path, shown.append)
    for ci, verdict in (("", "skipped"), ("true", "failed")):
        monkeypatch.setenv("CI", ci)
        result = await campaign.run(HOST_SCENARIOS["slow-core"], 1)
        assert (result.verdict, result.operation_count) == (verdict, 0)
        assert "no slow-cores: no control groups" in result.why
    assert "chaos-tests/run --hosts --transport" in shown[0]


def operation(
    at_ms: float, took_ms: float | None, kind: Kind = Kind.APPEND, process: int | None = None
) -> Operation:
    """Return a call, of a client of its own unless one is named."""
    invoke_ns = int(at_ms * 1e6)
    returned = None if took_ms is None else invoke_ns + int(took_ms * 1e6)
    outcome = Outcome.UNKNOWN if took_ms is None else Outcome.APPLIED
    client = int(at_ms) + 2 if process is None else process
    return Operation(0, client, kind, "q0", invoke_ns, returned, outcome, AppendCall("v"), None)


def test_latencies_are_of_steps_of_appends_of_the_interval() -> None:
    operations = [operation(at, 10 + (at % 100 == 0) * 90) for at in range(1000)]
    operations += [operation(at, 5000, Kind.GET) for at in range(1000)]
    operations += [operation(1000, 5000), operation(-1, 5000)]
    latencies = append_latencies(operations, 0, int(1000 * 1e6))
    assert latencies == Percentiles(1000, 10.0, 100.0, 100.0)
    # A window is one step, as long as its slowest message; a call without a receipt took for ever.
    windows = [
        operation(100 * window + at / 10, 30 + at, process=1)
        for window in range(COUNT_MIN)
        for at in range(20)
    ]
    assert append_latencies(windows, 0, int(1e12)) == Percentiles(COUNT_MIN, 50.9, 50.9, 50.9)
    lost = [operation(at, None, process=2) for at in range(4)]
    latencies = append_latencies([*windows, *lost], 0, int(1e12))
    assert (latencies.count, latencies.max) == (COUNT_MIN + 1, math.inf)
    with pytest.raises(NotSoError, match="299 steps are too few to judge; 300 are needed"):
        append_latencies(operations[: COUNT_MIN - 1], 0, int(1e12))


def test_a_gate_is_a_multiple_of_the_time_before_and_an_allowance() -> None:
    before = Percentiles(1000, 10.0, 40.0, 50.0)
    assert LatencyGate(2.0, 100.0, "why").bound_ms(before, 1.5) == 230.0


def test_a_host_says_how_a_command_runs_there(tmp_path: Path) -> None:
    plain = Host(2, 102, 3, tmp_path / "net-2")
    assert plain.launcher == ("nsenter", f"--net={tmp_path / 'net-2'}", "--")
    assert (plain.name, plain.address) == ("host-2", "10.77.0.102")
    assert plain.hardware_address == "02:00:00:00:00:03"
    ahead = Host(2, 2, 2, tmp_path / "net-2", 60)
    assert ahead.launcher[3:] == (
        "unshare", "--time", "--monotonic", "60", "--boottime", "60", "--",
    )  # fmt: skip


def test_links_are_directions_between_hosts_and_clients(tmp_path: Path) -> None:
    place = RunPlace(tmp_path)
    place.directory.mkdir()
    place.hosts_file.write_text("")
    network = HostNetwork(place, 3, 1)
    assert set(network.pairs([1], [2, 3])) == {(1, 2), (2, 1), (1, 3), (3, 1)}
    assert set(network.around(2, with_clients=False)) == {(2, 1), (1, 2), (2, 3), (3, 2)}
    around = network.around(2, with_clients=True)
    assert set(around) - set(network.around(2, with_clients=False)) == {(2, CLIENTS), (CLIENTS, 2)}
    assert len(network.all_pairs(with_clients=True)) == 12


def _words(name: str, artifacts: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of a run, and its environment; says why where there can be none."""
    for one in find_abilities(*host_profile(HOST_SCENARIOS[name].profile).needs).values():
        if not one.is_there:
            missing.injector(f"{one.name}: {one.detail}")
    words = [sys.executable, "-P", "-m", "chaos", "--hosts", name, "--seed", "7"]
    path = f"{RUN.parent}:{RUN.parent.parent}"
    return [*words, "--artifacts", str(artifacts)], {**os.environ, "PYTHONPATH": path}


@pytest.mark.long
def test_a_whole_run_on_hosts(tmp_path: Path) -> None:
    words, environment = _words("host-isolated", tmp_path)
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "7" / "summary.json").read_text())
    assert (summary["passed"], summary["lost"], summary["anomalies"]) == (1, 0, 0)
    assert summary["acked"] > 0
    assert summary["failovers"]["count"] == 1
    assert (tmp_path / "7" / "report.html").read_text().count("<svg") == 1


@pytest.mark.long
def test_a_killed_run_leaves_what_the_next_one_removes_and_no_more(tmp_path: Path) -> None:
    words, environment = _words("slow-disk", tmp_path)
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL) as run:
        try:
            name = run_name(run.pid)
            started = wait_for(
                "a switch and nodes", lambda: nodes_and("-m hosts.fabric.switch", run.pid)
            )
            devices = wait_for("disks of its nodes", lambda: _loop_devices(name))
        finally:
            run.kill()
    for process in started:
        assert process.wait_end(END_TIMEOUT_MS), "a process outlived the run"
    assert len(devices) == 3
    wait_for("no disk of the run", lambda: not _loop_devices(name))
    shared = Path("/dev/shm")
    assert shared / name in stale_in([shared])
    remove_stale_directories(shared)
    limits.remove_stale()
    assert not [one for one in stale_in([shared, *limits.parents()]) if one.name == name]


def _loop_devices(name: str) -> list[str]:
    """Return the loop devices on files of a run."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    devices = []
    for file in files:
        with contextlib.suppress(OSError):  # Gone meanwhile.
            devices.append(file.read_text("utf-8"))
    return [one for one in devices if f"/{name}/" in one]
