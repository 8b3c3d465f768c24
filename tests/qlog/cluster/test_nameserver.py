"""`qlog nameserver` against real nodes: who runs, where a topic lives, values."""

import json
from typing import Any

import pytest

from tests.patience import wait_for
from tests.qlog.running import Qlog


def test_status_names_every_replica_and_every_broker(qlog: Qlog) -> None:
    status: dict[str, Any] = {}

    def is_whole() -> bool:
        # The first answers after a start may still be those of an election, and a node says why it
        # could not register until it has.
        status.update(json.loads(qlog("nameserver", "status", "-o", "json", code=None).stdout))
        groups = [len(group["brokers"]) for group in status["broker_groups"]]
        problems = [one["problem"] for one in status["replicas"]]
        return bool(status["healthy"]) and groups == [3] and not any(problems)

    wait_for("all replicas and brokers", is_whole)
    assert sorted(one["node_id"] for one in status["replicas"]) == [1, 2, 3]
    assert sorted(one["state"] for one in status["replicas"]) == ["follower", "follower", "leader"]
    assert status["leader"] in [one["address"] for one in status["replicas"]]
    (group,) = status["broker_groups"]
    assert (group["broker_group"], group["kind"]) == ("g0", "raft")
    text = qlog("nameserver", "status").stdout
    assert all(qlog.nodes.address(node_id) in text for node_id in (1, 2, 3))
    output = qlog("nameserver", "status", "--server", qlog.nodes.address(1), "-o", "json").stdout
    assert len(json.loads(output)["replicas"]) == 3, "the others are learnt"


def test_a_route_says_where_a_topic_lives(qlog: Qlog, topic: str) -> None:
    route = ("nameserver", "route", topic)
    wait_for("the topic", lambda: qlog(*route, code=None).exit_code == 0)
    (share,) = qlog.json(*route)
    assert (share["broker_group"], share["write_queue_count"], share["permission"]) == ("g0", 1, 6)
    assert {broker["role"] for broker in share["brokers"]} == {"master", "slave"}
    form = json.loads(qlog("nameserver", "route", topic, "--rocketmq").stdout)
    assert form["queueDatas"][0]["brokerName"] == "g0"
    assert topic not in qlog("nameserver", "route", "nobody-knows-it", code=1).stdout


def test_values_are_put_read_and_deleted(qlog: Qlog) -> None:
    assert qlog.json("nameserver", "put", "app", "limit", "10")["value"] == "10"
    qlog("nameserver", "put", "app", "limit", "20", "--expected", "10")
    error = qlog("nameserver", "put", "app", "limit", "30", "--expected", "10", code=5).stderr
    assert "nameserver.changed" in error
    qlog("nameserver", "put", "app", "other", "x y")
    wait_for("the values", lambda: len(qlog.json("nameserver", "get", "app")) == 2)
    assert qlog.json("nameserver", "get", "app", "other") == [{"key": "other", "value": "x y"}]
    assert qlog.json("nameserver", "delete", "app", "other")["deleted"] is True
    error = qlog("nameserver", "delete", "app", "other", code=4).stderr
    assert "nameserver.value_not_found" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nameserver-listen", "10.0.0.1:9876"], "set a password"),
        (["--nameserver-listen", "0.0.0.0:9876"], "name one address"),
        ([], "name an IP address"),
    ],
)
def test_a_replica_alone_is_refused_what_is_not_safe(
    qlog: Qlog, tmp_path: object, arguments: list[str], said: str
) -> None:
    error = qlog("nameserver", "--directory", tmp_path, *arguments, code=78).stderr
    assert said in error
