"""Whose word about a broker is believed: with a secret, without one, of which cluster and group."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.config.load import load
from node.errors.common import BadRequestError, BusyError
from node.errors.nameserver import NotVouchedError, UnprovenReportError
from node.nameserver.directory import proofs
from node.nameserver.directory.directory import Command, forget_group_command, unregister_command
from node.nameserver.directory.fields import Result
from node.nameserver.directory.proofs import CHALLENGE_AGE_MS_MAX, Prover
from node.nameserver.report_judge import NO_BROKER, ReportJudge
from node.nameserver_process import load_settings
from quorumlog.foreign_json import DEPTH_MAX
from quorumlog.pb import nameserver_pb2 as pb
from tests.node.nameserver.brokers import alter, ha_master, ha_report, raft_leader

SECRET = b"0123456789abcdef"
HIGHEST = 5


class Case:
    """Node 1 of the group `ha`, which knows nodes 1 to 3, and its clock."""

    def __init__(self, secret: bytes = SECRET, **options: Any) -> None:
        self.now_s = 1_000.0
        members = {node: f"ha:{10000 + node}" for node in (1, 2, 3)}
        given: dict[str, Any] = {"own_id": 1, "known": lambda: members, **options}
        self.report_judge = ReportJudge("c", "ha", secret, monotonic_s=lambda: self.now_s, **given)
        self.prover = Prover(secret, "c")

    def request(self, command: Command | bytes, group: str = "ha") -> pb.ReportRequest:
        """A request with a proof of the secret, if there is one."""
        encoded = command if isinstance(command, bytes) else json.dumps(command).encode()
        request = pb.ReportRequest(group=group, command=encoded)
        self.prover.seal(request, self.report_judge.challenge())
        return request

    def take(self, request: pb.ReportRequest) -> Command:
        return self.report_judge.believed(request, lambda: HIGHEST)

    def believes(self, command: Command, group: str = "ha") -> bool:
        """Whether a command of a healthy node of that group gets through."""
        try:
            return self.take(self.request(command, group)) == command
        except (NotVouchedError, UnprovenReportError):
            return False

    def counts(self) -> dict[str, int]:
        return {reason: n for reason, n in self.report_judge.refused_counts.items() if n}


def beat(group: str, broker_id: int, epoch: int = 0) -> Command:
    return ha_report(broker_id, group=group, epoch=epoch).heartbeat()


def commands_of(broker_id: int) -> list[Command]:
    """Everything that a broker of the group says."""
    return [
        ha_report(broker_id).command(),
        beat("ha", broker_id),
        unregister_command("ha", broker_id, 1),
        alter(broker_id, [broker_id], (0, 0)),
    ]


def test_a_proof_is_of_the_secret_the_cluster_and_every_byte() -> None:
    case = Case()
    for command in commands_of(2):
        assert case.believes(command)
    for prover in (Prover(b"another secret, as long", "c"), Prover(SECRET, "other")):
        request = case.request(beat("ha", 2))
        prover.seal(request, case.report_judge.challenge())
        with pytest.raises(UnprovenReportError, match="another secret"):
            case.take(request)
    for name, value in {
        "group": "ha2",
        "command": json.dumps(beat("ha", 3)).encode(),
        "nonce": b"x" * 16,
        "challenge": bytes(40),
        "proof": bytes(32),
    }.items():
        request = case.request(beat("ha", 2))
        setattr(request, name, value)
        with pytest.raises(UnprovenReportError):
            case.take(request)
    with pytest.raises(UnprovenReportError, match="no proof"):
        case.take(pb.ReportRequest(group="ha", command=json.dumps(beat("ha", 2)).encode()))
    assert case.counts() == {"unproven": 8}


def test_a_copy_is_worth_nothing_at_any_time_and_place() -> None:
    case = Case()
    request = case.request(beat("ha", 2))
    case.take(request)
    with pytest.raises(UnprovenReportError, match="copy"):
        case.take(request)
    late = case.request(beat("ha", 2))
    case.now_s += CHALLENGE_AGE_MS_MAX / 1000 - 1
    with pytest.raises(UnprovenReportError, match="copy"):
        case.take(request)
    case.take(late)
    case.now_s += 2
    for copied in (request, late):
        with pytest.raises(UnprovenReportError, match="ms ago"):
            case.take(copied)
    restarted = Case()
    with pytest.raises(UnprovenReportError, match="no challenge of this process"):
        restarted.take(case.request(beat("ha", 2)))


def test_the_memory_of_proofs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "PROOF_COUNT_MAX", 3)
    case = Case()
    for _ in range(3):
        assert case.believes(beat("ha", 2))
    with pytest.raises(BusyError):
        case.take(case.request(beat("ha", 2)))
    case.now_s += CHALLENGE_AGE_MS_MAX / 1000 + 1
    assert case.believes(beat("ha", 2)), "what is too old to be copied is forgotten"
    assert case.counts() == {"busy": 1}


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_a_node_speaks_for_its_own_group_and_cluster_alone(secret: bytes) -> None:
    case = Case(secret)
    for command in commands_of(2):
        is_farewell = command["op"] == "unregister"
        assert case.believes(command) is (bool(secret) or not is_farewell)
        assert not case.believes(command, "far"), "of another group"
    for command in commands_of(1):
        assert not case.believes(command), "this node speaks for itself"
    for command in commands_of(4):
        assert not case.believes(command), "no member"
    assert not case.believes(ha_report(2, cluster="other").command())
    assert case.counts() == {"not_vouched": 13 if secret else 14}


def test_other_groups_and_addresses_are_believed_with_a_secret_only() -> None:
    command, moved = raft_leader(7, 3, "far").command(), ha_report(2, address="elsewhere:1")
    for secret in (SECRET, b""):
        case = Case(secret)
        assert case.believes(command, "far") is bool(secret)
        assert case.believes(beat("far", 7), "far") is bool(secret)
        assert case.believes(moved.command()) is bool(secret), "not the one that is configured"


def test_without_a_secret_no_epoch_is_news() -> None:
    case = Case(b"")
    assert case.believes(beat("ha", 2, HIGHEST))
    assert case.believes(ha_master(2, HIGHEST).command())
    assert not case.believes(beat("ha", 2, HIGHEST + 1))
    assert not case.believes(ha_master(2, HIGHEST + 1).command())
    bound = ha_master(2, HIGHEST + 1).command()["bindings"]
    assert not case.believes({**ha_report(2).command(), "bindings": bound})
    assert Case().believes(beat("ha", 2, HIGHEST + 1))


def test_a_name_server_alone_knows_whom_its_settings_name() -> None:
    standalone: dict[str, Any] = {"own_id": NO_BROKER, "known": dict}
    assert Case(**standalone).believes(raft_leader(7, 3, "far").command(), "far")
    assert not any(Case(b"", **standalone).believes(command) for command in commands_of(1))
    for secret in (b"", SECRET):
        case = Case(secret, own_id=NO_BROKER)
        assert [case.believes(c) for c in commands_of(1)] == [True, True, bool(secret), True]
        assert not any(case.believes(command) for command in commands_of(4))


def test_a_name_server_alone_takes_whom_it_serves_from_the_settings_of_nodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, settings = tmp_path / "nameserver.toml", 'nameserver_listen = "127.0.0.1:9876"\n'
    settings += f'directory = "{tmp_path}"\ncluster_id = "c"\n'
    file.write_text(settings)
    ReportJudge.of(load_settings(str(file), {}), is_standalone=True)
    assert "no broker is believed: set the same secret_file" in caplog.text
    caplog.clear()
    peer = 'address = "ha:10002"\npeer_address = "ha:20002"\n'
    file.write_text(f'{settings}broker_group = "ha"\n[peers.2]\n{peer}')
    case = Case(b"")
    case.report_judge = ReportJudge.of(load_settings(str(file), {}), is_standalone=True)
    assert [case.believes(ha_report(broker_id).command()) for broker_id in (2, 3)] == [True, False]
    assert "no broker is believed" not in caplog.text


def test_addresses_that_the_group_decided_on_override_what_is_configured(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    peers = [f'[peers.{n}]\naddress = "ha:{n}"\npeer_address = "ha:2{n}"\n' for n in (1, 2, 3)]
    file.write_text(f'node_id = 1\nbroker_group = "ha"\ncluster_id = "c"\n{"".join(peers)}')
    members = {2: ("moved:2", "moved:22"), 3: ("", "moved:23"), 4: ("joined:4", "joined:24")}
    settings = load(str(file), {"directory": str(tmp_path)}).settings
    case = Case(b"")
    case.report_judge = ReportJudge.of(settings, lambda: members)
    believed = [
        address
        for node in (1, 2, 3, 4, 5)
        for address in (f"ha:{node}", f"moved:{node}", f"joined:{node}")
        if case.believes(ha_report(node, address=address).command())
    ]
    assert believed == ["moved:2", "ha:3", "joined:4"]


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_a_malformed_report_is_refused_by_name(secret: bytes) -> None:
    case = Case(secret)
    odd: list[Any] = [
        {**beat("ha", 2), "broker_id": "2"},
        {**alter(2, [2], (0, 0)), "requester": True},
        forget_group_command("ha", 1),
        ["heartbeat"],
    ]
    if not secret:
        odd += [{**beat("ha", 2), "epoch": None}, {**ha_report(2).command(), "bindings": [1]}]
        odd.append({**ha_report(2).command(), "bindings": 7})
    for command in odd:
        with pytest.raises(BadRequestError):
            case.take(case.request(command))
    with pytest.raises(BadRequestError):
        case.take(case.request(b"[" * 100_000))
    assert case.counts() == {"bad_request": len(odd) + 1}


def test_refusals_of_the_directory_are_counted_when_they_are_odd() -> None:
    case = Case()
    for reason in ("epoch_too_high", "unknown_broker", "stale_process", "address_taken"):
        case.report_judge.note(Result(False, reason, "text"))
    assert case.counts() == {"epoch_too_high": 1, "address_taken": 1}
    assert case.report_judge.refused_count == 2


@pytest.mark.parametrize("name", ["op", "broker_id", "topics"])
@pytest.mark.parametrize("depth", [DEPTH_MAX, 500, 900])
def test_a_deeply_nested_report_is_a_bad_request(name: str, depth: int) -> None:
    """What can be read here may be too deep to be written a few calls further in."""
    case = Case(b"")
    whole = json.dumps({**ha_report(2).command(), name: "HERE"})
    deep = whole.replace('"HERE"', "[" * depth + "]" * depth).encode()
    with pytest.raises(BadRequestError, match="expected JSON"):
        case.take(case.request(deep))
