"""Our header: the vectors of docs/framed.md."""

import re
from pathlib import Path

from node.framed import header
from node.framed.header import encode_response
from quorumlog.pb import common_pb2
from quorumlog.pb.common_pb2 import Error
from quorumlog.pb.log_pb2 import PULL_STATUS_FOUND, AppendRequest, PullResponse
from tests.node.framed.clients import (
    APPEND,
    CANCEL,
    ERROR,
    MORE,
    PULL,
    request,
)

PAGE = Path(__file__).parents[3] / "docs" / "framed.md"


def test_the_vectors_of_the_page_are_what_node_and_client_write() -> None:
    error = Error(code="node.unimplemented", message="no", outcome=common_pb2.OUTCOME_NOT_APPLIED)
    expected = {
        "append": request(
            APPEND, 7, AppendRequest(record_count=1).SerializeToString(), b"RECORD", timeout_ms=500
        ),
        "receipt": encode_response(APPEND, 0, 7, b"\x10\x01"),
        "error": encode_response(200, header.ERROR, 8, error.SerializeToString()),
        "part of a tail": encode_response(
            header.Method.TAIL,
            header.MORE,
            9,
            PullResponse(status=PULL_STATUS_FOUND, record_count=1).SerializeToString(),
            6,
        )
        + b"RECORD",
        "cancel": request(PULL, 10, flags=CANCEL),
    }
    vectors = {
        name: bytes.fromhex(text)
        for name, text in re.findall(r"^\| ([a-z ]+) \| `([0-9a-f ]+)` \|$", PAGE.read_text(), re.M)
    }
    assert vectors == expected
    assert (ERROR, MORE) == (header.ERROR, header.MORE)
