"""Events: the node's own log lines as data, bounded, without secrets."""

import io
import json
import logging

import structlog

from node.runtime.logs import form
from node.runtime.logs.events import COUNT_MAX, EVENTS, OF_OTHERS, SIZE_CHARACTERS_MAX, Events


def test_a_log_line_is_an_event_without_its_secrets() -> None:
    form.configure("info", "json", stream=io.StringIO())
    before = EVENTS.after(0)[-1:]
    newest = before[0].number if before else 0
    structlog.get_logger(component="raft").info("role", role="leader", term=7, secret="s3")
    structlog.get_logger(component="raft").debug("too small")
    logging.getLogger("node.peers").error("%s", "x" * 9_000)
    role, long = EVENTS.after(newest)
    assert (role.number, role.level, role.component, role.text) == (
        newest + 1, "info", "raft", "role",
    )  # fmt: skip
    assert json.loads(role.values) == {"role": "leader", "term": 7, "secret": form.HIDDEN}
    assert (long.component, long.level, len(long.text)) == (
        "node.peers", "error", SIZE_CHARACTERS_MAX,
    )  # fmt: skip


def test_of_other_code_only_errors_are_events() -> None:
    stream = io.StringIO()
    form.configure("debug", "json", stream=stream)
    before = [event.number for event in EVENTS.after(0)]
    logging.getLogger("py.warnings").warning("deprecated")
    for name in ("grpc", "asyncio", "store"):
        logging.getLogger(name).warning("a warning of %s", name)
        logging.getLogger(name).error("an error of %s", name)
    form._log_native_line("E0000 chatter of a library")
    form._log_python_line("ValueError: a thread ended")
    texts = [event.text for event in EVENTS.after(before[-1] if before else 0)]
    assert texts == [
        "an error of grpc", "an error of asyncio", "a warning of store", "an error of store",
        "ValueError: a thread ended",
    ]  # fmt: skip
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 9
    assert not any(OF_OTHERS in line for line in lines)


def test_events_are_bounded_and_a_caller_gets_what_it_lacks() -> None:
    events = Events()
    for n in range(COUNT_MAX + 5):
        events(
            None, "", {"level": "info", "component": "c", "event": "e", "a": "y" * 9_000, "n": n}
        )
    kept = events.after(0)
    assert (len(kept), kept[0].number, kept[-1].number) == (COUNT_MAX, 6, COUNT_MAX + 5)
    assert len(kept[0].values) <= 2 * SIZE_CHARACTERS_MAX
    json.loads(kept[0].values)
    assert [event.number for event in events.after(COUNT_MAX + 2)] == [
        COUNT_MAX + 3, COUNT_MAX + 4, COUNT_MAX + 5,
    ]  # fmt: skip
    last = [event.number for event in events.after(0, count_max=1)]
    assert last == [COUNT_MAX + 5]
    began = events.began_unix_ms
    assert not events.after(COUNT_MAX + 5, began)
    assert len(events.after(COUNT_MAX + 5, began - 1)) == COUNT_MAX, "numbers of another process"
