"""The console over a real cluster: its pages, and what hostile texts and other sites cannot do."""

import http.client
import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

import quorumlog
from deploy.local import LocalCluster
from qlog.console.charts import of_lag
from qlog.console.cluster import Cluster
from quorumlog import sync
from quorumlog.admin.types import LagSample
from tests.cluster.test_damage import SMALL, fill, flip
from tests.patience import PATIENCE_S, wait_for
from tests.qlog.running import Qlog, started

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x07&lt;b&gt;"
TOPIC = "seen"


class Browser:
    """Requests as a browser sends them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.headers: dict[str, str] = {}

    def get(self, path: str, code: int = 200, **headers: str) -> str:
        return self.ask("GET", path, code, None, headers)

    def post(self, path: str, code: int, form: dict[str, str], **headers: str) -> str:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        own = {"origin": f"http://{self.address}", "sec-fetch-site": "same-origin", **kind}
        return self.ask("POST", path, code, urlencode(form), own | headers)

    def ask(
        self, method: str, path: str, code: int, body: str | None, headers: dict[str, str]
    ) -> str:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        assert answer.status == code, (path, answer.status, text)
        return text


@contextmanager
def console(qlog: Qlog, *options: str) -> Iterator[Browser]:
    with opened(qlog.start("console", "--port", 0, *options)) as browser:
        yield browser


@contextmanager
def opened(process: "subprocess.Popen[bytes]") -> Iterator[Browser]:
    """A browser of a console that was started."""
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        yield Browser(line.split("http://")[1].strip().rstrip("/"))
    finally:
        process.terminate()
        _, errors = process.communicate()
        assert b"Traceback" not in errors, errors.decode()


@pytest.fixture(scope="module")
def message_id(qlog: Qlog) -> str:
    with sync.connect(qlog.nodes.bootstrap) as client:
        client.admin.create_topic(TOPIC, queue_count=2)
        producer = client.producer()
        receipt = producer.send(
            TOPIC,
            HOSTILE,
            key="k" + HOSTILE.replace(" ", ""),
            queue_id=0,
            properties={"p": HOSTILE},
        )
        producer.send(TOPIC, json.dumps({"a": HOSTILE}), queue_id=0)
        producer.send(TOPIC, bytes(range(256)), queue_id=0)
        client.admin.commit_offsets("readers", {(TOPIC, 0): 1})
        return receipt.message_id


def test_every_page_shows_hostile_texts_and_runs_none(qlog: Qlog, message_id: str) -> None:
    with console(qlog) as browser:
        paths = [
            "/", "/events", "/topics", f"/topics/{TOPIC}", f"/topics/{TOPIC}/messages?queue=0",
            f"/topics/{TOPIC}/tail", f"/topics/{TOPIC}/find?key=k", f"/topics/{TOPIC}/send",
            "/groups", "/groups/readers", f"/groups/readers/reset?topic={TOPIC}&position=first",
            "/nodes", "/nodes/1", f"/messages/{message_id}", "/microscope",
            f"/microscope?kind=queue&at={TOPIC}:0:0", "/microscope?node=1&other=2&kind=index&at=3",
            "/topics?find=" + quote(HOSTILE),
        ]  # fmt: skip
        for path in paths:
            page = browser.get(path)
            policy = browser.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'" in policy
            assert not re.search(
                "unsafe|data: |https?:", policy.replace("img-src 'self' data:", "")
            )
            for forbidden in ("<script>alert", "<img", "\u202e", "\x07", " style="):
                assert forbidden not in page, (path, forbidden)
            assert not re.search(r'(src|href|action)="(?!/|\?|#)', page), "it stays on this machine"
        assert "Both nodes have the same bytes" in browser.get("/microscope?other=2&at=3")
        page = browser.get(f"/messages/{message_id}")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "stored" in page
        assert "readers" in browser.get("/groups")
        for path, code in (
            (f"/topics/{quote('<b>')}", 400), ("/messages/xyz", 400), ("/nodes/77", 404),
            ("/groups/none", 404), (f"/topics/{TOPIC}/messages?queue=9", 404),
            (f"/topics/{TOPIC}/messages?offset=-1", 400), ("/groups?page=x", 400),
            (f"/topics/{TOPIC}/messages?offset={10**30}", 400), ("/static/../app.py", 404),
            ("/microscope?kind=x&at=1", 400),
            ("/microscope?kind=queue&at=1", 400),
            (f"/topics/{TOPIC}/tail?sql=1+1+1", 400), (f"/topics/{TOPIC}/tail?sql=a&tag=b", 400),
        ):  # fmt: skip
            browser.get(path, code)
        assert "not called by that name" in browser.get("/", 421, host="evil.example")


async def test_topics_show_counts_and_then_rates(qlog: Qlog) -> None:
    async with quorumlog.connect(qlog.nodes.bootstrap) as client, client.producer() as producer:
        await client.admin.create_topic("flowing")
        await producer.send("flowing", "x")
        cluster, key = Cluster(client, is_full=False), ("in", "flowing")
        assert (await cluster.flows(for_s=-1))[key] == (1, None)
        await producer.send_batch("flowing", ["x"] * 5)
        total, per_s = (await cluster.flows(for_s=-1))[key]
        assert total == 6
        assert per_s is not None
        assert per_s > 0
        assert ("out", "flowing") in await cluster.flows()
        held = await producer.send("flowing", "x", delay=3_600)
        with console(qlog) as browser:
            page = browser.get("/topics?find=flow")
            assert re.search("the rate follows in some seconds.[^>]*>6</td>", page)
            assert re.search(r"\d, next due", browser.get("/"))
        await client.cancel_delayed(held.message_id)  # Other tests count those of the cluster.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_open_streams_and_before_it_is_connected(
    qlog: Qlog, number: signal.Signals, message_id: str
) -> None:
    process = qlog.start("console", "--port", 0)
    with opened(process) as browser, ExitStack() as held:
        lines = []
        for path in ("/stream/", "/stream/events", f"/stream/topics/{TOPIC}/tail"):
            connection = http.client.HTTPConnection(browser.address, timeout=PATIENCE_S)
            held.enter_context(closing(connection)).request("GET", path)
            lines.append(iter(connection.getresponse().readline, b""))
            assert next(lines[-1]) == b"event: live\n"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        for rest in lines:
            assert list(rest)[-1] == b"\n", "it ends behind an event"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = started("console", server=f"127.0.0.1:{silent.getsockname()[1]}")
        with silent.accept()[0]:
            process.send_signal(number)
            assert process.communicate(timeout=PATIENCE_S)[1].endswith(b"interrupted\n")
        assert process.returncode == 130
    assert message_id


def test_a_console_that_reads_changes_nothing(qlog: Qlog, message_id: str) -> None:
    form = {"body": "x", "topic": TOPIC, "position": "end", "offset": "0", "token": "x"}
    with console(qlog) as browser:
        for path in (f"/topics/{TOPIC}/send", "/groups/readers/reset", "/groups/readers/resend"):
            assert "only reads" in browser.post(path, 403, form)
    assert message_id
    assert qlog.json("topic", "describe", TOPIC)["message_count"] == 3


def test_only_pages_of_the_console_change_things(qlog: Qlog, message_id: str) -> None:
    send, reset = f"/topics/{TOPIC}/send", "/groups/readers/reset"
    with console(qlog, "--mode", "full") as browser:
        found = re.search(r'name="token" value="([^"]+)"', browser.get(send))
        assert found is not None
        form = {"token": found[1], "body": HOSTILE, "key": "console", "tag": ""}
        browser.post(send, 403, form, origin="http://evil.example")
        browser.post(send, 403, form | {"token": "guessed"})
        browser.post(send, 403, form, **{"sec-fetch-site": "cross-site"})
        browser.post(send, 415, form, **{"content-type": "text/plain"})
        assert qlog.json("topic", "describe", TOPIC)["message_count"] == 3
        browser.post(send, 303, form)
        assert browser.headers["location"].startswith("/messages/")
        assert "Done: stored in queue" in browser.get(browser.headers["location"])
        browser.post(reset, 303, {"token": found[1], "topic": TOPIC, "position": "end"})
        assert qlog.json("group", "describe", "readers")["lag_count"] == 0
        browser.post(reset, 400, {"token": found[1], "topic": TOPIC, "position": "ende"})
    assert message_id


@pytest.mark.long
def test_damage_and_a_node_that_is_down_are_shown(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, 3, settings=SMALL) as cluster:
        qlog, leader = Qlog(cluster), cluster.leader_id()
        fill(cluster)
        other = leader % 3 + 1
        look = f"/microscope?kind=queue&at=orders:1:0&node={leader}&other={other}"
        with console(qlog) as browser, sync.connect(cluster.bootstrap) as client:
            assert "All is well" in browser.get("/")
            flip(cluster, leader)
            page = browser.get(look)
            assert re.search(r"differ first at .*byte \d+ of the record</a>, in body", page)
            assert "differs here" in page
            assert len(client.pull("orders", 1, 0)) == 1
            assert "Both nodes have the same bytes" in browser.get(look)
            wait_for("it to be told", lambda: "errors in its log" in browser.get("/"))
            assert "errors in its log: 1" in qlog("check", code=1).stdout
            assert f"qlog events --node {leader} --level error" in browser.get("/")
            page = browser.get("/events")
            assert "DamagedRange" not in page
            assert re.search(r"entries written: 1, from entry \d+ on.* is kept in ", page)
            cluster.kill(other)
            page = browser.get(look)
            assert f"node {other} does not answer" in page
            assert "<h3>record" in page


def test_an_open_page_follows_the_cluster(qlog: Qlog) -> None:
    with console(qlog) as browser:
        connection = http.client.HTTPConnection(browser.address, timeout=60)
        connection.request("GET", "/stream/topics?find=follow")
        answer = connection.getresponse()
        assert answer.readline() == b"event: live\n"
        assert b"No topic has this in its name" in answer.readline()
        qlog.json("topic", "create", "follow_me", "--queues", 1)
        line = answer.readline()
        while b"data:" not in line:
            line = answer.readline()
        assert b"follow_me" in line
        connection.close()


def test_a_chart_ends_its_line_where_samples_are_missing() -> None:
    times = (0, 30, 60, 300, 330)
    [chart, _] = of_lag([LagSample(time * 1000, 5, 0) for time in times])
    assert chart["data"] == [[0, 30, 60, 90, 300, 330], [5, 5, 5, "gap", 5, 5]]


def test_a_port_that_is_taken_and_bad_options_are_refused(qlog: Qlog) -> None:
    with console(qlog) as browser:
        port = browser.address.rpartition(":")[2]
        assert "cannot listen" in qlog("console", "--port", port, code=3).stderr
    assert "no IP address" in qlog("console", "--host", "localhost", code=2).stderr
    assert "no host name" in qlog("console", "--name", "http://x/", code=2).stderr
    assert "of this machine: --host" in qlog("console", "--host", "192.0.2.1", code=3).stderr
