"""The storage engine.

A memory-mapped commit log of the Apache RocketMQ design, and all it needs. The package owns every
byte on disk and must not know about consensus, sockets, gRPC or an event loop; blocking calls are
allowed here and nowhere else. `engine` has the parts of an open directory, `opening` the order of
their recovery; `store` appends to them, `reads` answers from them. `clock`, `config`, `stats`,
`errors` and `format` are the ground that all folders stand on. Start reading at `store.store`.
Programs that embed the engine import the names below; they are loaded when they are first used,
since few of its modules need all of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store import errors
    from store.config import StoreConfig
    from store.errors import StoreError
    from store.reads import QueueInfo
    from store.record.message import Message, decode_message, encode_message
    from store.store import Store

_MODULE_OF = {
    "Store": "store",
    "StoreConfig": "config",
    "StoreError": "errors",
    "QueueInfo": "reads",
    "Message": "record.message",
    "decode_message": "record.message",
    "encode_message": "record.message",
}

__all__ = [
    "Message",
    "QueueInfo",
    "Store",
    "StoreConfig",
    "StoreError",
    "decode_message",
    "encode_message",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("store.errors")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"store.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'store' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
