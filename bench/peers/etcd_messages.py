"""The few messages of etcd's API that the benchmark sends, described here at run time.

Owns field numbers and names, as far as they are needed. protobuf skips a field that is left out
here when it arrives, as any unknown field.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "quorumlog.bench.etcd"  # Names are not on the wire; numbers and types are.
_TYPES = descriptor_pb2.FieldDescriptorProto

# Message -> [(field, number, type, is repeated)]. A capitalised type is a message of this list.
_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    "ResponseHeader": [("member_id", 2, "uint64", False), ("revision", 3, "int64", False)],
    "PutRequest": [("key", 1, "bytes", False), ("value", 2, "bytes", False)],
    "PutResponse": [("header", 1, "ResponseHeader", False)],
    "RequestOp": [("request_put", 2, "PutRequest", False)],
    "TxnRequest": [("success", 2, "RequestOp", True)],
    "TxnResponse": [("header", 1, "ResponseHeader", False), ("succeeded", 2, "bool", False)],
    "RangeRequest": [
        ("key", 1, "bytes", False),
        ("range_end", 2, "bytes", False),
        ("limit", 3, "int64", False),
    ],
    "KeyValue": [("key", 1, "bytes", False), ("value", 5, "bytes", False)],
    "RangeResponse": [("kvs", 2, "KeyValue", True), ("more", 3, "bool", False)],
    "StatusRequest": [],
    "StatusResponse": [
        ("header", 1, "ResponseHeader", False),
        ("version", 2, "string", False),
        ("leader", 4, "uint64", False),
    ],
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="quorumlog/bench/etcd.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, is_repeated in fields:
            added = message.field.add(name=field, number=number)
            added.label = _TYPES.LABEL_REPEATED if is_repeated else _TYPES.LABEL_OPTIONAL
            if kind in _MESSAGES:
                added.type = _TYPES.TYPE_MESSAGE
                added.type_name = f".{_PACKAGE}.{kind}"
            else:
                added.type = _TYPES.Type.Value(f"TYPE_{kind.upper()}")
    return file


def message_classes() -> dict[str, Any]:
    """Make the classes in a pool of their own; name -> class."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }
