"""The bench of stand-stills runs, and covers each request that may be large."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.stalls.inputs import classic
from node.rocketmq.remoting.protocol.codes import RequestCode
from tests.node.rocketmq.remoting.clients import gateway_at

_SMALL = re.compile(
    r"""GET_.* | QUERY_.* | (UN)?REGISTER_.* | DELETE_.* | SEND_MESSAGE | SEND_REPLY_MESSAGE(_V2)?
    | LITE_PULL_MESSAGE | UPDATE_CONSUMER_OFFSET | SEARCH_OFFSET_BY_TIMESTAMP | END_TRANSACTION
    | VIEW_MESSAGE_BY_ID | CONSUMER_SEND_MSG_BACK | CONSUME_MESSAGE_DIRECTLY | ACK_MESSAGE
    | UPDATE_AND_CREATE_(TOPIC|SUBSCRIPTIONGROUP) | (WIPE|ADD)_WRITE_PERM_OF_BROKER
    | SET_MESSAGE_REQUEST_MODE | CHANGE_MESSAGE_INVISIBLETIME | CLEAN_.*""",
    re.VERBOSE,
)
"""Requests about one thing, where they have no input."""


@pytest.mark.long
def test_stand_stills_are_measured_and_short() -> None:
    words = [
        sys.executable,
        "-P",
        "-m",
        "bench.stalls",
        "-o",
        "json",
        "heart_beat",
        "lock_",
        "end of",
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=300)
    rows = json.loads(done.stdout)
    assert {row["name"] for row in rows} >= {"34 heart_beat", "the end of a connection"}
    assert done.returncode == 0, rows


async def test_each_request_that_may_be_large_has_an_input(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as gateway:
        handlers = gateway.remoting.handlers()
        served = {code.name for code in RequestCode if code in handlers}
    sent = {RequestCode(one.code).name for one in classic(0)}
    assert not [name for name in served - sent if not _SMALL.fullmatch(name)]
