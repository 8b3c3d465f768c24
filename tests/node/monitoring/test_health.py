"""When a node is ready, who is told, what a log line never says, and which error ends it how."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from node.lifecycle import exit_code_of, is_ours
from node.monitoring.health import Health, Phase
from node.peers.security.tls import TlsFileError
from node.replication.term_end import TermEndError
from node.runtime.fail_stop import EXIT_BAD_CONFIG, EXIT_BAD_DATA, EXIT_TRY_LATER
from node.runtime.identity import IdentityMismatchError
from node.runtime.logs import form
from node.services.server import PortTakenError
from raft.transitions import Role
from store.errors import CorruptionError, LayoutError, LockedError, StoreFullError, TopicNameError
from store.record.message import encode_message


class Driver:
    """What health asks."""

    role, leader_id, is_ready = Role.FOLLOWER, 0, False


def test_ready_is_who_serves_and_leads_or_knows_who_does() -> None:
    health, readiness = Health(), list[bool]()
    driver: Any = Driver()
    health.add_listener(readiness.append)
    assert health.ready() == (False, "starting: opening the store")
    health.watch(driver)
    health.enter(Phase.SERVING)
    assert health.ready() == (False, "no leader is known")
    driver.leader_id = 2
    health.refresh()
    assert health.ready() == (True, "node 2 leads")
    driver.role, driver.leader_id = Role.LEADER, 1
    health.refresh()
    why = "this node leads, and serves once it has applied all entries committed before"
    assert health.ready() == (False, why)
    driver.is_ready = True
    health.refresh()
    assert health.ready() == (True, "this node leads")
    health.enter(Phase.DRAINING, "told to stop")
    assert health.ready() == (False, "draining: told to stop")
    health.enter(Phase.STOPPING)
    assert health.ready() == (False, "stopping")
    assert health.live().is_good
    assert readiness == [True, False, True, False]


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """Where log lines go: as JSON, or in the form that the test names."""
    stream, handlers = io.StringIO(), logging.getLogger().handlers
    level = logging.getLogger().level
    form.configure("info", getattr(request, "param", "json"), stream=stream, bound={"node": 3})
    yield stream
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers
    logging.getLogger().setLevel(level)
    for package in form.OWN_PACKAGES:
        logging.getLogger(package).setLevel(logging.NOTSET)


def test_lines_are_json_without_secrets(lines: io.StringIO) -> None:
    log = structlog.get_logger(component="test")
    log.info("opened", secret="abc", auth_token="def", secret_file="path", count=2)
    log.debug("too much")
    logging.getLogger("node.peers.link").info("a line of %s", "logging")
    logging.getLogger("uvicorn").info("too much of a library")
    records = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [line["event"] for line in records] == ["opened", "a line of logging"]
    assert records[0]["secret"] == records[0]["auth_token"] == form.HIDDEN
    assert (records[0]["secret_file"], records[0]["count"], records[0]["node"]) == ("path", 2, 3)
    assert (records[1]["level"], records[1]["component"]) == ("info", "node.peers.link")


def test_an_error_is_one_line_with_its_traceback(lines: io.StringIO) -> None:
    try:
        raise KeyError("missing")
    except KeyError as error:
        structlog.get_logger().error("failed", exc_info=error)
    (line,) = lines.getvalue().splitlines()
    assert "Traceback" in json.loads(line)["exception"]


@pytest.mark.parametrize("lines", ["json", "console"], indirect=True)
def test_lines_show_texts_of_clients_as_escapes(lines: io.StringIO) -> None:
    hostile = "\x1b[2J\u202e\nnode=9"
    try:
        raise KeyError(hostile) from ValueError(hostile)
    except KeyError as error:
        structlog.get_logger().error(f"of {hostile}", client=hostile, exc_info=error)
    text = lines.getvalue()
    assert "2J" in text
    assert not any(part in text for part in ("\x1b[2J", "\u202e", "of \x1b[2J\u202e\nnode"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TlsFileError("tls_ca_file", "a.pem", "no", "do"), EXIT_BAD_CONFIG),
        (CorruptionError("f", 1, "crc", "1", "2"), EXIT_BAD_DATA),
        (LayoutError("d", "x", "y"), EXIT_BAD_DATA),
        (IdentityMismatchError("d", "node", "1", "2"), EXIT_BAD_DATA),
        (TermEndError("d", "term", 1 << 63, "do"), EXIT_BAD_DATA),
        (LockedError("d", "process 1"), EXIT_TRY_LATER),
        (StoreFullError("d", 2, 1), EXIT_TRY_LATER),
        (PortTakenError("listen", "a:1", "in use"), EXIT_TRY_LATER),
        (PermissionError(13, "denied"), EXIT_TRY_LATER),
    ],
)
def test_each_startup_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_an_error_of_our_packages_is_told_from_one_of_a_library() -> None:
    with pytest.raises(TopicNameError) as ours:
        encode_message("bad topic!", -1, b"", {})
    assert is_ours(ours.value)
    with pytest.raises(json.JSONDecodeError) as library:
        json.loads("{")
    assert not is_ours(library.value)
    assert is_ours(AssertionError())
    assert not is_ours(TimeoutError())
