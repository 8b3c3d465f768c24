"""Access keys: who holds one may call, whichever client wrote the header."""

import hashlib
import hmac

import pytest

from node.rocketmq.callers import check_access
from node.rocketmq.protocol.statuses import CallRefusedError
from quorumlog.pb.rocketmq_pb2 import Code

TIME = "20261122T070000Z"


def headers(key: str, secret: str, *, upper: bool = False, time: str = TIME) -> dict[str, str]:
    signature = hmac.new(secret.encode(), TIME.encode(), hashlib.sha1).hexdigest()
    signature = signature.upper() if upper else signature
    value = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": value, "x-mq-date-time": time}


def test_without_keys_everybody_may_call() -> None:
    check_access({}, {})
    check_access({}, headers("", ""))


@pytest.mark.parametrize(("key", "upper"), [("ak", False), ("ak", True), ("ak//Rocketmq", False)])
def test_a_client_with_a_key_may_call(key: str, upper: bool) -> None:
    check_access({"ak": "sk"}, headers(key, "sk", upper=upper))


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"authorization": "Basic abc"},
        headers("ak", "other"),
        headers("other", "sk"),
        headers("", ""),
        headers("ak", "sk", time="20261122T070001Z"),
    ],
)
def test_a_client_without_a_key_is_refused(found: dict[str, str]) -> None:
    with pytest.raises(CallRefusedError) as refused:
        check_access({"ak": "sk"}, found)
    assert refused.value.code == Code.UNAUTHORIZED
