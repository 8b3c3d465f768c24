"""Pickles of plain values only, in place of those that PySyncObj would read and write.

Owns what may come off the wire; must not know the library. A pickle that names a class or a
function can run code, so it is refused whoever sent it.
"""

import pickle
from io import BytesIO
from typing import Any


class PlainUnpickler(pickle.Unpickler):
    """Makes numbers, texts, bytes and containers of them; names no class and no function."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Refuse: with any name a message could run code."""
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not a plain value")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse."""
        raise pickle.UnpicklingError("a plain value has no persistent ids")


def plain_loads(data: bytes) -> Any:
    """Unpickle plain values. Raises UnpicklingError for anything that names a class."""
    return PlainUnpickler(BytesIO(data)).load()


def plain_dumps(found: object, protocol: object = None) -> bytes:
    """Pickle plain values, in a form that `plain_loads` reads."""
    del protocol  # The library's own, 2, needs a function to make bytes.
    return pickle.dumps(found, 4)


def no_files(*_: object) -> None:
    """Refuse: the library would write its own dumps."""
    raise pickle.UnpicklingError("no file of the name server is a pickle")
