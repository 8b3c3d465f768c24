"""The options of a message that is sent, once for all calls that take them.

Owns their names, types and defaults; must not know what is sent. `send`, `enqueue` and
`send_nowait` of the producer spell the options of SendOptions out, since passing them on costs a
third of such a call; a test compares them.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


class MessageOptions(TypedDict, total=False):
    """Options of every message."""

    key: str | None
    """Indexed for `query_by_key`, several with one blank between. Chooses group and queue."""
    tag: str | None
    """Consumers can filter by it."""
    queue_id: int | None
    """The queue; None: chosen by `key`, or round robin a batch at a time."""
    properties: Mapping[str, str] | None


class OutputOptions(MessageOptions, total=False):
    """Options of an output of a consuming transaction: its inputs say which broker group."""

    flag: int


class HalfOptions(MessageOptions, total=False):
    """Options of the messages of a transaction."""

    group: str
    """Name of the broker group; empty: chosen by `queue_id` or `key`."""


class BatchOptions(HalfOptions, total=False):
    """Options of an atomic batch. One of the last three may say when consumers see it."""

    delay: float | None
    """Seconds."""
    level: int | None
    """1 to 18."""
    deliver_at: float | None
    """Unix seconds."""


class SendOptions(BatchOptions, total=False):
    """Options of a single message."""

    flag: int
    message_group: str | None
    """Messages of one group go to one queue, and are consumed in order there."""


_DEFAULTS: Final[Mapping[str, Any]] = {"flag": 0, "group": ""}
"""Defaults that are not None."""


def takes_options(kind: type) -> Callable[[_Function], _Function]:
    """Have a call with `**options: Unpack[kind]` show each of them in its signature.

    The call raises TypeError for any other, as every function does.
    """
    hints = typing.get_type_hints(kind)
    shown = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=hint
        )
        for name, hint in hints.items()
    ]

    def wrap(function: _Function) -> _Function:
        def refuse_unknown(options: Mapping[str, Any]) -> None:
            if options.keys() <= names:  # Once a message.
                return
            name = next(name for name in options if name not in names)
            text = f"{function.__qualname__}() got an unexpected keyword argument {name!r}"
            raise TypeError(text)

        call: Any
        if inspect.iscoroutinefunction(function):

            async def call(*args: Any, **options: Any) -> Any:
                refuse_unknown(options)
                return await function(*args, **options)
        else:

            def call(*args: Any, **options: Any) -> Any:
                refuse_unknown(options)
                return function(*args, **options)

        functools.update_wrapper(call, function)
        signature = inspect.signature(function)
        own = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        names = hints.keys() | own.keys()
        call.__signature__ = signature.replace(parameters=[*own.values(), *shown])
        return cast(_Function, call)

    return wrap
