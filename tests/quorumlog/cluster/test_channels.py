"""The calls of a service over a channel are those of its proto file."""

from typing import Any

from quorumlog.cluster.channels import stub
from quorumlog.pb import log_pb2, pop_pb2


class Channel:
    """Keeps what each kind of call was made with."""

    def __getattr__(self, kind: str) -> Any:
        return lambda path, **coding: (kind, path, coding)


def test_each_method_has_its_kind_and_its_path() -> None:
    log = stub(Channel(), log_pb2.DESCRIPTOR)
    assert log.Append[:2] == ("unary_unary", "/quorumlog.v1.LogService/Append")
    assert log.Tail[:2] == ("unary_stream", "/quorumlog.v1.LogService/Tail")
    assert log.AppendStream[:2] == ("stream_stream", "/quorumlog.v1.LogService/AppendStream")
    assert set(vars(log)) == set(log_pb2.DESCRIPTOR.services_by_name["LogService"].methods_by_name)
    assert not hasattr(stub(Channel(), pop_pb2.DESCRIPTOR), "Append")


def test_requests_and_responses_are_coded_as_their_messages() -> None:
    coding = stub(Channel(), log_pb2.DESCRIPTOR).Pull[2]
    request = log_pb2.PullRequest(topic="orders", queue_id=3)
    assert coding["request_serializer"](request) == request.SerializeToString()
    response = coding["response_deserializer"](
        log_pb2.PullResponse(max_offset=7).SerializeToString()
    )
    assert isinstance(response, log_pb2.PullResponse)
    assert response.max_offset == 7
