"""RocketMQ's exporter and Dashboard against a cluster that a classic client uses.

Neither is published as a jar: build them from their sources (`mvn package`) and name the jars in
ROCKETMQ_EXPORTER_JAR and ROCKETMQ_DASHBOARD_JAR.
"""

import http.cookiejar
import json
import os
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from deploy.local import LocalCluster
from deploy.local_process import free_ports
from tests import missing
from tests.compat.official.clients import pinned
from tests.compat.official.run import START_S, Program, broker_addresses, client_arguments
from tests.java import SHORT_LIVED
from tests.patience import wait_for

NEWEST: Final = next(client for client in reversed(pinned()) if client.is_classic_java)
COUNT: Final = 100
"""Messages of each kind."""
_EVERY_2_S: Final = "*/2 * * * * ?"
_COLLECTORS: Final = (
    *("TopicOffset", "Producer", "ConsumerOffset"),
    *("BrokerStatsTopic", "BrokerStats", "BrokerRuntimeStats"),
)


class Live(NamedTuple):
    """A cluster with a consumer of every group that has received all."""

    name_servers: str
    prefix: str


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    missing.installed(NEWEST.part)
    home = tmp_path_factory.mktemp("tools")
    settings = {
        "file_size_bytes": "16MiB",
        "rocketmq_listen": "127.0.0.1:0",
        "rocketmq_auto_topics": True,
    }
    with LocalCluster.create(home / "c", settings=settings) as cluster:
        arguments = client_arguments(NEWEST, cluster, COUNT)
        with (
            Program(NEWEST, home / "produce", "produce", *arguments) as producer,
            Program(NEWEST, home / "consume", "consume", *arguments) as consumer,
        ):
            producer.wait_for(lambda event: event["event"] == "done", START_S)
            consumer.wait_for(lambda event: event["event"] == "ready", START_S)
            yield Live(";".join(broker_addresses(cluster)), arguments[1])


@contextmanager
def program(variable: str, home: Path, *options: str) -> Iterator[tuple[str, Path]]:
    """Run the jar that a variable names; return its address and what it prints."""
    jar = os.environ.get(variable)
    if not jar:
        missing.program(f"{variable} names no jar")
    (port,) = free_ports(1)
    said = home / "said"
    command = ["java", *SHORT_LIVED, "-Xmx400m", f"-Duser.home={home}", "-jar", jar]
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--server.port={port}", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home,
        )
        try:
            yield f"http://127.0.0.1:{port}", said
        finally:
            process.kill()
            process.wait()


def read(url: str) -> str:
    """Return a page, "" as long as there is none."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def sums(metrics: str, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the sums of a metric over all labels but the given ones."""
    totals: dict[tuple[str, ...], float] = defaultdict(float)
    for text, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", metrics, re.MULTILINE):
        row = dict(re.findall(r'(\w+)="([^"]*)"', text))
        totals[tuple(row[label] for label in labels)] += float(value)
    return totals


@pytest.mark.long
def test_the_exporter_reads_what_there_is(live: Live, tmp_path: Path) -> None:
    topic, group = f"{live.prefix}-ordinary", f"{live.prefix}-push"
    crons = [f"--task.collect{name}.cron={_EVERY_2_S}" for name in _COLLECTORS]
    servers = f"--rocketmq.config.namesrvAddr={live.name_servers}"
    with program("ROCKETMQ_EXPORTER_JAR", tmp_path, servers, *crons) as (address, said):
        metrics = ""

        def is_there() -> bool:
            nonlocal metrics
            metrics = read(f"{address}/metrics")
            appended = sums(metrics, "rocketmq_producer_offset", "topic")
            consumed = sums(metrics, "rocketmq_consumer_offset", "group", "topic")
            is_complete = appended[(topic,)] == consumed[group, topic] == COUNT
            return is_complete and "rocketmq_brokeruntime_pmdt_10stomore" in metrics

        wait_for("the metrics of the exporter", is_there)
        assert "ERROR" not in said.read_text()
    assert sums(metrics, "rocketmq_group_diff", "group", "topic")[group, topic] == 0
    appended = sum(sums(metrics, r"rocketmq_brokeruntime_pmdt_\w+", "brokerIP").values())
    assert appended > 4 * COUNT
    ends = sums(metrics, "rocketmq_brokeruntime_commitlog_maxoffset", "brokerIP")
    assert len(ends) == 3
    assert min(ends.values()) > 0


class Dashboard:
    """The calls behind its pages."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(self._cookies)
        )
        self._opener.open(f"{address}/rocketmq-dashboard/csrf-token", timeout=30).close()

    def get(self, path: str, **query: object) -> Any:
        """Return the data of a call."""
        return self._data(f"{path}?{urllib.parse.urlencode(query)}", None)

    def post(self, path: str, body: object, **query: object) -> Any:
        """Return the data of a call that changes something."""
        return self._data(f"{path}?{urllib.parse.urlencode(query)}", json.dumps(body).encode())

    def _data(self, path: str, body: bytes | None) -> Any:
        tokens = {cookie.name: cookie.value or "" for cookie in self._cookies}
        headers = {"Content-Type": "application/json", "X-XSRF-TOKEN": tokens["XSRF-TOKEN"]}
        request = urllib.request.Request(f"{self._address}{path}", body, headers)
        with self._opener.open(request, timeout=60) as answer:
            document = json.load(answer)
        assert document["status"] == 0, f"{path}: {document}"
        return document["data"]


@pytest.mark.long
def test_the_dashboard_shows_and_changes(live: Live, tmp_path: Path) -> None:
    options = (
        f"--rocketmq.config.namesrvAddrs={live.name_servers}",
        "--rocketmq.config.isVIPChannel=false",
    )
    with program("ROCKETMQ_DASHBOARD_JAR", tmp_path, *options) as (address, _):
        wait_for("Dashboard", lambda: read(f"{address}/rocketmq-dashboard/csrf-token"))
        dashboard = Dashboard(address)
        _check_cluster(dashboard)
        _check_topics(dashboard, live.prefix)
        _check_consumers(dashboard, live.prefix)
        _check_messages(dashboard, live.prefix)


def _check_cluster(dashboard: Dashboard) -> None:
    cluster = dashboard.get("/cluster/list.query")
    assert sorted(cluster["brokerServer"]) == ["g0-n1", "g0-n2", "g0-n3"]
    (address,) = cluster["clusterInfo"]["brokerAddrTable"]["g0-n1"]["brokerAddrs"].values()
    config = dashboard.get("/cluster/brokerConfig.query", brokerAddr=address)
    assert config["brokerName"].startswith("g0.")
    assert dashboard.get("/ops/homePage.query")["namesvrAddrList"]


def _check_topics(dashboard: Dashboard, prefix: str) -> None:
    topic = f"{prefix}-ordinary"
    assert topic in dashboard.get("/topic/list.query")["topicList"]
    rows = dashboard.get("/topic/stats.query", topic=topic)["offsetTable"].values()
    assert sum(row["maxOffset"] for row in rows) == COUNT
    assert len(dashboard.get("/topic/route.query", topic=topic)["queueDatas"]) == 3
    assert f"{prefix}-push" in dashboard.get("/topic/queryConsumerByTopic.query", topic=topic)
    info = dashboard.get("/cluster/list.query")["clusterInfo"]
    made = {
        "topicName": "made",
        "writeQueueNums": 3,
        "readQueueNums": 3,
        "perm": 6,
        "order": False,
        "messageType": "NORMAL",
        "clusterNameList": list(info["clusterAddrTable"]),
        "brokerNameList": [],
    }
    assert dashboard.post("/topic/createOrUpdate.do", made)
    assert len(dashboard.get("/topic/examineTopicConfig.query", topic="made")) == 3
    assert dashboard.post("/topic/deleteTopic.do", {}, topic="made")


def _check_consumers(dashboard: Dashboard, prefix: str) -> None:
    group, topic = f"{prefix}-push", f"{prefix}-ordinary"
    groups = {row["group"]: row for row in dashboard.get("/consumer/groupList.query")}
    assert (groups[group]["count"], groups[group]["diffTotal"]) == (1, 0)
    address = groups[group]["address"][0]
    of_group = {"consumerGroup": group, "address": address}
    (client,) = dashboard.get("/consumer/consumerConnection.query", **of_group)["connectionSet"]
    running = dashboard.get(
        "/consumer/consumerRunningInfo.query",
        consumerGroup=group,
        clientId=client["clientId"],
        jstack="false",
    )
    assert running["subscriptionSet"]
    consumed = dashboard.get("/consumer/queryTopicByConsumer.query", **of_group)
    assert {row["topic"]: row["diffTotal"] for row in consumed}[topic] == 0
    assert dashboard.get("/consumer/examineSubscriptionGroupConfig.query", **of_group)
    moved = dashboard.post(
        "/consumer/skipAccumulate.do",
        {"resetTime": -1, "consumerGroupList": [group], "topic": topic, "force": True},
    )
    assert moved[group]["status"]


def _check_messages(dashboard: Dashboard, prefix: str) -> None:
    topic, now_ms = f"{prefix}-ordinary", int(time.time() * 1000)
    span = {"topic": topic, "begin": now_ms - 3_600_000, "end": now_ms + 60_000}
    page = {**span, "pageNum": 1, "pageSize": 10, "taskId": ""}
    rows = dashboard.post("/message/queryMessagePageByTopic.query", page)["page"]["content"]
    assert len(rows) == 10
    shown = dashboard.get("/message/viewMessage.query", topic=topic, msgId=rows[0]["msgId"])
    tracks = {row["consumerGroup"]: row["trackType"] for row in shown["messageTrackList"]}
    assert tracks[f"{prefix}-push"] == "CONSUMED", tracks
    message = {"topic": topic, "key": "red", "tag": "t", "messageBody": "one"}
    sent = dashboard.post("/topic/sendTopicMessage.do", {**message, "traceEnabled": False})
    assert sent["sendStatus"] == "SEND_OK"
    (by_key,) = dashboard.get("/message/queryMessageByTopicAndKey.query", topic=topic, key="red")
    assert by_key["msgId"] == sent["msgId"]
    dead = {**page, "topic": f"%DLQ%{prefix}-push"}
    assert "page" in dashboard.post("/dlqMessage/queryDlqMessageByConsumerGroup.query", dead)
