"""Services of tests: an object whose methods are named as in a proto file answers its calls.

Owns how such an object becomes a handler; must not share code with the server or the client.
"""

from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass


def add(server: Any, file: FileDescriptor, answers: object) -> None:
    """Have a server answer the calls of a file's one service; what `answers` lacks is
    UNIMPLEMENTED."""
    (service,) = file.services_by_name.values()
    handlers = {
        name: _handler(method, getattr(answers, name))
        for name, method in service.methods_by_name.items()
        if hasattr(answers, name)
    }
    assert handlers, f"{answers!r} answers nothing of {service.full_name}"
    handler = grpc.method_handlers_generic_handler(service.full_name, handlers)
    server.add_generic_rpc_handlers((handler,))


def _handler(method: MethodDescriptor, answer: Any) -> Any:
    request_kind, answered = (
        "stream" if is_stream else "unary"
        for is_stream in (method.client_streaming, method.server_streaming)
    )
    return getattr(grpc, f"{request_kind}_{answered}_rpc_method_handler")(
        answer,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )
