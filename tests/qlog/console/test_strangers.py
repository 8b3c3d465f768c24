"""The console and callers that mean harm: messages, addresses, connections and forms of theirs."""

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pytest

from deploy.local_metrics import metric_of
from quorumlog import sync
from tests.qlog.console.test_pages import Browser, console
from tests.qlog.running import Qlog

TOPIC = "strange"
DIGITS = "9" * 5000
NUMBERS = '{"amount":1,"amount":1000000,"f":0.1000000000000000055,"big":1e400,"n":-0}'
NESTED = b"[" + b",".join([b"[" * 900 + b"]" * 900] * 34) + b"]"


@pytest.fixture(scope="module")
def ids(qlog: Qlog) -> dict[str, str]:
    bodies: dict[str, bytes | str] = {
        "nested": NESTED,
        "numbers": NUMBERS,
        "line": "x" * 10_000,
        "blank": "a\u3164b",
    }
    with sync.connect(qlog.nodes.bootstrap) as client:
        client.admin.create_topic(TOPIC, queue_count=2)
        client.admin.create_topic("wide", queue_count=100)
        client.admin.create_topic("closed", permission=4)
        producer = client.producer()
        for n in range(100):
            producer.send("wide", f"queue{n}.", queue_id=n)
        producer.send("wide", "the tagged one", queue_id=7, tag="rare")
        for n in range(60):
            producer.send("wide", f"hot{n}.", queue_id=7)
        found = {
            name: producer.send(TOPIC, body, queue_id=0).message_id for name, body in bodies.items()
        }
        client.admin.commit_offsets("movers", {(TOPIC, 0): 1})
        return found


@pytest.fixture(scope="module")
def browser(qlog: Qlog) -> Iterator[Browser]:
    with console(qlog, "--mode", "full", "--name", "Console.Example.COM") as one:
        yield one


def token(browser: Browser) -> str:
    found = re.search(r'name="token" value="([^"]+)"', browser.get(f"/topics/{TOPIC}/send"))
    assert found is not None
    return found[1]


def test_bodies_are_shown_as_they_are_written_and_in_bounds(
    browser: Browser, ids: dict[str, str]
) -> None:
    assert len(browser.get(f"/messages/{ids['nested']}")) < 1 << 20
    page = browser.get(f"/messages/{ids['numbers']}").replace("&#34;", '"')
    folded = page[page.index("<summary>JSON") : page.index("<summary>Text")]
    for member in NUMBERS[1:-1].split(","):
        assert f"  {member.replace(':', ': ')}" in folded, member
    assert "x" * 10_000 in browser.get(f"/messages/{ids['line']}")
    assert "a\\u3164b" in browser.get(f"/messages/{ids['blank']}")
    assert "the first 120 of 10,000 bytes" in browser.get(f"/topics/{TOPIC}/messages?queue=0")


def test_the_tail_shows_all_queues_and_a_filter_looks_far_back(
    browser: Browser, ids: dict[str, str]
) -> None:
    page = browser.get("/topics/wide/tail")
    assert [f"hot{n}." in page for n in (9, 10, 59)] == [False, True, True]
    for path in ("tail", "messages?queue=7"):
        page = browser.get(f"/topics/wide/{path}{'&' if '?' in path else '?'}tag=rare")
        assert "the tagged one" in page
    assert "Looked at all 161 messages" in browser.get("/topics/wide/tail?tag=none")
    assert "Looked at all 62 messages" in browser.get("/topics/wide/messages?queue=7&tag=none")


def test_an_open_tail_reads_no_more_than_it_shows(browser: Browser, qlog: Qlog) -> None:
    with sync.connect(qlog.nodes.bootstrap) as client:
        client.admin.create_topic("long", queue_count=2)
        producer = client.producer()
        for n in range(4_000):
            producer.send_nowait("long", f"long{n}.", queue_id=n % 2)
        producer.flush()

        def read_count() -> float:
            nodes = qlog.nodes.node_ids
            return sum(metric_of(qlog.nodes, n, "quorumlog_pulled_records_total") for n in nodes)

        before = read_count()
        host, _, port = browser.address.rpartition(":")
        with closing(http.client.HTTPConnection(host, int(port), timeout=60)) as connection:
            connection.request("GET", "/stream/topics/long/tail")
            lines = iter(connection.getresponse().readline, b"")
            page = next(line for line in lines if line.startswith(b"data")).decode()
            once = read_count()
            next(line for line in lines if b"same" in line)
    assert [page.count(f"long{n}.") for n in (3_949, 3_950, 3_999)] == [0, 1, 1]
    assert page.index("long3999.") < page.index("long3997.") < page.index("long3990.")
    assert once - before <= 200
    assert read_count() == once


def test_addresses_that_name_nothing_are_refused(browser: Browser, ids: dict[str, str]) -> None:
    for path, code in (
        (f"/nodes/{DIGITS}", 404), (f"/nodes/{'9' * 19}", 404), ("/nodes/x", 404),
        (f"/microscope?kind=queue&at=orders:{DIGITS}:0", 400),
        (f"/microscope?kind=queue&at=orders:0:{DIGITS}", 400),
        ("/microscope?at=999999999", 404), ("/stream/microscope", 404),
        (f"/stream/topics/{TOPIC}/messages?queue=abc", 400),
        (f"/stream/topics/{TOPIC}/messages?queue=9", 404),
        (f"/messages/{'A' * 32}", 404), ("/messages?id=xyz", 303),
        (f"/stream/messages/{ids['line']}?file", 400),
    ):  # fmt: skip
        page = browser.get(path, code)
        assert "Traceback" not in page, path
        assert 'class="state"></span>' in page or path.startswith("/stream") or code == 303
        assert "A" * 32 in page or "A" * 32 not in path, "by the id that was asked for"
    form = {"token": token(browser)}
    browser.post("/groups/movers/resend", 400, form | {"offset": DIGITS})
    assert "I was here" not in browser.get("/?done=I+was+here")
    browser.get("/", host="console.example.com")


def test_a_wrong_input_keeps_the_form_and_times_are_those_of_commands(
    browser: Browser, ids: dict[str, str]
) -> None:
    for path, told in (
        ("messages?queue=0&tag=a&time=soon", "no time; give 2026-01-31T12:00:00Z"),
        ("tail?sql=1%20%2B", "What to do"),
    ):
        page = browser.get(f"/topics/wide/{path}", 400)
        assert told in page
        assert 'value="1 +"' in page or 'value="soon"' in page
    for time, is_there in (("-1h", True), ("2100-01-01T00:00Z", False)):
        page = browser.get(f"/topics/wide/messages?queue=7&time={time}")
        assert ("queue7." in page) is is_there
    assert "offsets 0 to 61." in page
    assert "skips 0 messages, and reads 1 again" in browser.get(
        f"/groups/movers/reset?topic={TOPIC}&position=@-1h"
    )
    assert "Queue 1 is empty" in browser.get(f"/topics/{TOPIC}/messages?queue=1")
    browser.get(f"/topics/{TOPIC}/at?queue=0&offset=2", 303)
    assert browser.headers["location"] == f"/messages/{ids['line']}"
    browser.get(f"/topics/{TOPIC}/at?queue=0&offset=9", 404)


def test_a_change_that_is_refused_keeps_what_was_typed(
    browser: Browser, ids: dict[str, str]
) -> None:
    send = {"token": token(browser), "key": "two <words>", "tag": "a", "body": "\n one\n&lt;"}
    for topic, token_sent in (("closed", send["token"]), ("wide", "of an earlier run")):
        page = browser.post(f"/topics/{topic}/send", 403, send | {"token": token_sent})
        for kept in ('value="two &lt;words&gt;"', 'value="a"', ">\n\n one\n&amp;lt;</textarea>"):
            assert kept in page
        assert 'role="alert"' in page
        assert token(browser) in page
    form = {"token": send["token"], "topic": TOPIC, "position": "ende"}
    page = browser.post("/groups/movers/reset", 400, form)
    assert 'value="ende"' in page
    assert f"<option selected>{TOPIC}" in page
    page = browser.post("/groups/movers/resend", 400, {"token": send["token"], "offset": "x"})
    assert "offset is a whole number" in page
    assert ">Queues<" in page
    assert 'data-path="/groups/movers"' in page


def test_a_dry_run_says_what_a_reset_does(browser: Browser, ids: dict[str, str]) -> None:
    form = {"token": token(browser), "topic": TOPIC}
    page = browser.get(f"/groups/movers/reset?topic={TOPIC}&position=end")
    assert "skips 3 messages, and reads 0 again" in page
    assert re.findall(r'"n">(.*?)</td>', page) == ["1", "4", "3", "0", "0", "0"]
    page = browser.get(f"/groups/movers/reset?topic={TOPIC}&position=first")
    assert "skips 0 messages, and reads 1 again" in page
    for position, code in (
        ("99999999", 400), ("-1", 200), ("@2026-01-31", 200), ("@1", 200), ("1", 400),
        ("0", 200), ("end", 200), ("first", 200), (DIGITS, 400), ("ende", 400),
    ):  # fmt: skip
        asked = f"/groups/movers/reset?topic={TOPIC}&position={quote(position)}"
        browser.get(asked, code)
        done = 303 if code == 200 else code
        browser.post("/groups/movers/reset", done, form | {"position": position})
    browser.get(f"/groups/absent/reset?topic={TOPIC}&position=first", 404)
    browser.post("/groups/absent/reset", 404, form | {"position": "first"})


def test_a_form_is_refused_before_its_body_is_read(browser: Browser) -> None:
    for headers, code in (
        ("Origin: http://evil.example\r\nContent-Length: 9", b"403"),
        (f"Origin: http://{browser.address}\r\nContent-Type: text/plain\r\nContent-Length: 9",
         b"415"),
        (f"Origin: http://{browser.address}\r\nContent-Length: 99999999", b"413"),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", b"400"),
    ):  # fmt: skip
        kind = "" if "Type" in headers else "Content-Type: application/x-www-form-urlencoded\r\n"
        head = f"POST /topics/{TOPIC}/send HTTP/1.1\r\nHost: {browser.address}\r\n"
        with connected(browser, f"{head}{kind}{headers}\r\n\r\n") as stalled:
            assert stalled.recv(4096).split()[1] == code, headers


def test_connections_that_send_nothing_make_room(browser: Browser) -> None:
    half = [connected(browser) for _ in range(260)]
    try:
        browser.get("/")
        for one in half[:60]:
            assert not one.recv(1), "the oldest go first"
    finally:
        for one in half:
            one.close()


@pytest.mark.long
def test_half_a_header_is_not_awaited_for_ever(browser: Browser) -> None:
    with connected(browser) as half, connected(browser) as again:
        again.sendall(b": y\r\nHost: 127.0.0.1\r\n\r\n")
        assert again.recv(1)
        again.sendall(b"GET / HTTP/1.1\r\nHost")
        for one in (half, again):
            while one.recv(4096):
                pass


def connected(browser: Browser, begin: str = "GET / HTTP/1.1\r\nX") -> socket.socket:
    host, _, port = browser.address.rpartition(":")
    half = socket.create_connection((host, int(port)), timeout=60)
    half.sendall(begin.encode())
    return half
