"""Methods that an object hands on to one of its parts, under the same name and signature.

Owns the wrapping; must not know what any method does. A client and an admin have parts, each with
the calls of one feature; a program calls them on the whole, and need not know the parts.
"""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Part = TypeVar("_Part")


def handed_on(
    part: str, method: Callable[Concatenate[_Part, _P], _T]
) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method that calls `method` of the part that its owner has as attribute `part`.

    A coroutine method looks the part up when it is awaited.
    """
    part_of = operator.attrgetter(part)
    call: Any
    if inspect.iscoroutinefunction(method):

        async def call(self: Any, /, *args: Any, **named: Any) -> Any:
            return await method(part_of(self), *args, **named)
    else:

        def call(self: Any, /, *args: Any, **named: Any) -> Any:
            return method(part_of(self), *args, **named)

    handing_on: Callable[Concatenate[Any, _P], _T] = functools.update_wrapper(call, method)
    return handing_on
