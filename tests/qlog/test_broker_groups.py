"""What commands say in a cluster of two broker groups, and how they name one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from deploy.local import LocalCluster
from qlog import main
from tests.patience import wait_for
from tests.qlog.running import Qlog, check_keys

TOPIC = "orders"


@pytest.fixture(scope="module")
def qlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qlog]:
    """Two groups of one node, and a topic with two queues in each."""
    directory = tmp_path_factory.mktemp("groups") / "c"
    settings = {"file_size_bytes": "8MiB"}
    cluster = LocalCluster.create(directory, 1, groups=2, settings=settings)
    with cluster:
        runner = Qlog(cluster)
        made = runner.json("topic", "create", TOPIC, "--queues", 2)
        assert (made["queue_count"], len(made["shares"])) == (4, 2)
        yield runner


def healthy(qlog: Qlog, *arguments: str) -> str:
    """What a command prints once it finds nothing wrong: a busy machine may be late to answer."""

    def shown() -> str | None:
        result = qlog(*arguments, code=None)
        return result.stdout if result.exit_code == 0 else None

    return wait_for(f"{arguments} without a finding", shown) or ""


def test_nodes_are_shown_with_their_group(qlog: Qlog) -> None:
    status = json.loads(healthy(qlog, "cluster", "status", "-o", "json"))
    check_keys(status, "cluster", "status")
    assert (status["healthy"], status["leader_id"]) == (True, 1)
    assert [(g["broker_group"], g["leader_id"]) for g in status["broker_groups"]] == [
        ("g0", 1),
        ("g1", 2),
    ]
    assert [(n["node_id"], n["broker_group"], n["role"]) for n in status["nodes"]] == [
        (1, "g0", "leader"),
        (2, "g1", "leader"),
    ]
    assert "\nbroker_group  node_id" in healthy(qlog, "cluster", "status")
    assert healthy(qlog, "top", "--once", "--interval", "0.1").startswith("broker_group  node_id")
    members = qlog.json("cluster", "members", "list", "--broker-group", "g1")
    assert [member["node_id"] for member in members] == [2]
    assert [m["node_id"] for m in qlog.json("cluster", "members", "list")] == [1]


def test_queues_are_named_with_their_group(qlog: Qlog, tmp_path: Path) -> None:
    for name, queue in (("first", 1), ("second", "g1/1")):
        qlog.produce(tmp_path, TOPIC, f"{name}\n", "--queue", queue)
    queues = qlog.json("topic", "describe", TOPIC)["queues"]
    assert [(q["broker_group"], q["queue_id"], q["message_count"]) for q in queues] == [
        ("g0", 0, 0),
        ("g0", 1, 1),
        ("g1", 0, 0),
        ("g1", 1, 1),
    ]
    assert "group  queue_id" in qlog("topic", "describe", TOPIC).stdout
    assert qlog("consume", TOPIC, "--until", "end", "--queue", "g1/1").stdout == "second\n"
    assert qlog("consume", TOPIC, "--until", "end", "--queue", 1).stdout == "first\n"
    both = qlog.json("consume", TOPIC, "--until", "end")
    assert {(row["broker_group"], row["body"]) for row in both} == {
        ("g0", "first"),
        ("g1", "second"),
    }
    for row in both:
        assert qlog.json("message", "get", row["message_id"]) == row
    table = qlog("consume", TOPIC, "--until", "end", "-o", "table").stdout.splitlines()
    assert table[0].split()[:3] == ["broker_group", "queue_id", "queue_offset"]
    assert sorted(line.split()[0] for line in table[1:]) == ["g0", "g1"]
    nonsense = qlog("consume", TOPIC, "--queue", "g1/x", code=2).stderr
    assert "GROUP/NUMBER" in nonsense
    assert "known are g0, g1" in qlog("consume", TOPIC, "--queue", "g7/0", code=4).stderr


def test_a_consumer_group_is_shown_over_all_groups(qlog: Qlog, tmp_path: Path) -> None:
    for queue in ("g0/0", "g1/0"):
        qlog.produce(tmp_path, TOPIC, "".join(f"{i}\n" for i in range(8)), "--queue", queue)
    taken = qlog("consume", TOPIC, "--group", "billing", "--until", "end").stdout.splitlines()
    assert len(taken) >= 16
    group = qlog.json("group", "describe", "billing")
    assert (group["lag_count"], group["topics"]) == (0, [TOPIC])
    offsets = {(q["broker_group"], q["queue_id"]): q["offset"] for q in group["queues"]}
    assert (offsets["g0", 0], offsets["g1", 0]) == (8, 8)
    assert "broker_group  topic" in qlog("group", "describe", "billing").stdout
    [row] = qlog.json("group", "list")
    assert row == {"group": "billing", "member_count": 0, "lag_count": 0, "topics": [TOPIC]}
    assert qlog.json("group", "delete", "billing", "--yes")["deleted"] is True
    assert qlog.json("group", "list") == []


def test_local_commands_know_the_groups(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", 2, groups=2)
    assert cluster.groups == {"g0": (1, 2), "g1": (3, 4)}
    assert LocalCluster.open(cluster.directory).groups == cluster.groups
    settings = (cluster.node_directory(3) / "node.toml").read_text()
    assert 'broker_group = "g1"' in settings
    assert "[peers.4]" in settings
    assert "[peers.1]" not in settings
    runner = CliRunner()
    options = ["--dir", str(cluster.directory)]
    status = runner.invoke(main, ["local", "status", *options])
    assert status.stdout.startswith("broker_group  node_id")
    wrong = runner.invoke(main, ["local", "start", *options, "--broker-groups", "3"])
    assert "made with another --broker-groups" in wrong.stderr
    unknown = runner.invoke(main, ["local", "kill", *options, "--leader", "--broker-group", "g7"])
    assert "there is no broker group 'g7'" in unknown.stderr
    many = runner.invoke(
        main, ["local", "start", "--dir", str(tmp_path / "d"), "--broker-groups", "6"]
    )
    assert "use at most 16 nodes" in many.stderr
