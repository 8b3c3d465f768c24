"""Checks of the arguments of public calls, and the words for an argument that is refused.

Owns the rule that the signature is the contract: an argument must be of the annotated type, a
number within the range of its name, a text one that can be sent. So no value that cannot be encoded
reaches a request, a batch or a task that others share. Must not know what a call does.

`checked` wraps the public methods of a class. Methods that are called once a message check their
arguments themselves (`outgoing_messages`), because the general way costs microseconds:
`checks_itself` marks them. tests/quorumlog/test_arguments.py finds a public method that is neither.
"""

import functools
import inspect
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from quorumlog.errors import InvalidRequestError, WrongTypeError
from quorumlog.records.message import Message, MessageBatch
from quorumlog.records.options import (
    POSITIONS,
    TIMEOUT_MS_MAX,
    Consistency,
    Decision,
    parse_position,
)
from quorumlog.records.queues import Queue
from quorumlog.records.receipt import Receipt
from quorumlog.user_tokens import fault_of_token

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Owner = TypeVar("_Owner")
_Value = TypeVar("_Value")
Check = Callable[[str, Any], None]
"""(parameter name, value). Raises InvalidRequestError or WrongTypeError for an unusable value."""

INT32_MAX: Final = (1 << 31) - 1
UINT32_MAX: Final = (1 << 32) - 1
INT64_MAX: Final = (1 << 63) - 1
UINT64_MAX: Final = (1 << 64) - 1
TEXT_LENGTH_MAX: Final = 4 * 1024 * 1024
"""Limit of any text: a longer one does not fit into a request."""
NAME_LENGTH_MAX: Final = 255
"""Limit of topic and group names: the characters that a record has room for."""
SECRETS: Final = frozenset({"token", "secret"})
"""Arguments that no error shows."""
SHOWN_LENGTH_MAX: Final = 80
"""Characters of a value that the text of an error shows."""

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    name: bounds
    for bounds, names in {
        (0, INT32_MAX): "queue_id queues queue_count permission max_count max_size_bytes "
        "retry_count_max batch_count_max",
        (1, INT32_MAX): "max_attempts prefetch batch_size_bytes_max in_flight_max "
        "compress_from_size_bytes",
        (-INT32_MAX - 1, INT32_MAX): "flag",
        (0, UINT32_MAX): "node_id record_count check_after_ms retry_delays_ms connections",
        (
            0,
            INT64_MAX,
        ): "offset offsets log_position at_least_index transaction_id unix_ms lo_unix_ms "
        "hi_unix_ms position key_slot expires_unix_ms",
        (-1, INT64_MAX): "index",
        (1, INT64_MAX): "held_count_max",
        (0, UINT64_MAX): "producer_id sequence bytes_per_second messages_per_second "
        "requests_per_second",
        (1, 1 << 40): "buffer_size_bytes_max held_size_bytes_max",
        (0, 1e11): "deliver_at delay",
        (0, 43_200): "seconds",
        (0.001, 43_200): "invisible",
        (0, 3_600): "wait",
        (0, TIMEOUT_MS_MAX): "wait_ms",
        (1, TIMEOUT_MS_MAX): "timeout_ms connect_timeout_ms",
        (10, TIMEOUT_MS_MAX): "commit_interval_ms",
        (0, 60_000): "linger_ms",
        (1, 18): "level",
        (1, 9): "nodes",  # Of a cluster for tests, as its broker groups.
        (1, 16): "broker_groups",
    }.items()
    for name in names.split()
}
"""The least and the largest number by parameter name; a name means the same in every call.
Single calls and the nodes have narrower ranges."""

_NAMES: Final = (
    "topic topics forbidden_topics group broker_group producer_group client_id cluster_id "
    "message_id namespace name address peer_address id user roles action actions resource token "
    "certificate secret remove"
)
LENGTHS: Final[Mapping[str, int]] = {
    **dict.fromkeys(_NAMES.split(), NAME_LENGTH_MAX),
    **dict.fromkeys(("key", "tag", "tags"), 32_767),
}
"""The most characters of a text, where they are fewer than TEXT_LENGTH_MAX."""


_REAL: Final[tuple[type, ...]] = (int, float, numbers.Real)  # The common ones first.


# Faults of a value.


def shown(value: object) -> str:
    """Return a value as an error shows it: cut when it is long, also if its repr raises."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - it is the caller's object.
        text = f"<{type(value).__name__}, its repr raises {type(error).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > SHOWN_LENGTH_MAX:
        return f"{text[:SHOWN_LENGTH_MAX]}... ({len(text)} characters)"
    return text


def shown_as(name: str, value: object) -> str:
    """Return the value of an argument as `shown`; nothing of one that is secret by its name."""
    return "hidden here" if name in SECRETS else shown(value)


def wrong_type(name: str, value: object, wanted: str) -> WrongTypeError:
    """Return the error for a value of a type that the call cannot use."""
    shown_value = shown_as(name, value)
    return WrongTypeError(f"{name} is {shown_value}, a {type(value).__name__}; use {wanted}")


def check_number(name: str, value: Any) -> None:
    """Accept whole numbers, also those of numpy, within the range of their name."""
    _check_range(name, whole_number(name, value))


def whole_number(name: str, value: Any, wanted: str = "a whole number") -> int:
    """Return the number that a value is, also one of numpy. Raises WrongTypeError."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise wrong_type(name, value, wanted)


def check_real(name: str, value: Any) -> None:
    """Accept finite numbers with or without a fraction, also those of numpy, within their range."""
    number: float = value
    if isinstance(value, bool) or not isinstance(value, _REAL):
        raise wrong_type(name, value, "a number")
    _check_range(name, number)


def _check_range(name: str, number: float) -> None:
    lo, hi = RANGES[name]
    if not lo <= number <= hi:  # Also refuses NaN.
        raise InvalidRequestError(f"{name} is {shown(number)}; use {lo:.15g} to {_plain(hi)}")


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.15g}"


def check_text(name: str, value: Any) -> None:
    """Accept text that can be sent: valid UTF-8, of limited length."""
    if not isinstance(value, str):
        raise wrong_type(name, value, "text")
    limit = LENGTHS.get(name, TEXT_LENGTH_MAX)
    if len(value) > limit:
        raise InvalidRequestError(f"{name} has {len(value)} characters; use {limit} at most")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{name} is {shown_as(name, value)}, which is no valid text ({error.reason} at "
                f"character {error.start}); use what UTF-8 can encode"
            ) from None


def check_path(name: str, value: Any) -> None:
    """Accept a path of a file."""
    _check_kind(str | os.PathLike, "a path", name, value)
    check_text(name, os.fsdecode(value))
    if "\0" in os.fsdecode(value):
        raise InvalidRequestError(f"{name} is {shown(value)}; use a path without 0x00")


def _check_kind(kind: Any, wanted: str, name: str, value: Any) -> None:
    if not isinstance(value, kind):
        raise wrong_type(name, value, wanted)


def _check_queue(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != 2:
        raise wrong_type(name, value, "a Queue, or a pair of topic and queue id")
    check_text("topic", value[0])
    check_number("queue_id", value[1])
    if isinstance(value, Queue):
        check_text("broker_group", value.broker_group)


def _check_message(name: str, value: Any) -> None:
    """Accept messages that were received, also ones that the caller has made."""
    _check_kind(Message, "a message that was received", name, value)
    check_text("topic", value.topic)
    check_number("queue_id", value.queue_id)
    check_number("offset", value.queue_offset)
    check_text("broker_group", value.broker_group)
    check_text("handle", getattr(value, "handle", ""))


def _check_receipt(name: str, value: Any) -> None:
    _check_kind(Receipt, "a receipt", name, value)
    check_text("message_id", value.message_id)
    check_text("broker_group", value.broker_group)


def _check_batch(name: str, value: Any) -> None:
    _check_kind(MessageBatch, "a batch that was received", name, value)
    _check_queue("queue", value.queue)
    check_number("offset", value.offset)
    check_number("offset", value.next_offset)


def _check_queue_offset(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != 3:
        raise wrong_type(name, value, "(topic, queue_id, offset)")
    _check_queue(name, value[:2])
    check_number("offset", value[2])


def _check_position(name: str, value: Any) -> None:
    if isinstance(value, str):
        parse_position(value, name)
    elif not 0 <= whole_number(name, value, "a whole number or text") <= INT64_MAX:
        raise InvalidRequestError(f"{name} is {shown(value)}; use {POSITIONS}")


def _check_consistency(name: str, value: Any) -> None:
    _check_kind(str | Consistency, "a Consistency or the name of one", name, value)
    Consistency.of(value)


def _check_decision(_name: str, value: Any) -> None:
    Decision.of(value)


# From an annotation to a check.


def _check_tags(name: str, value: Any) -> None:
    _check_each(check_text, name, value)
    for tag in value:  # A name that no message has would skip all, without a word.
        if tag == "*":
            raise InvalidRequestError("tags is '*'; use no tags for all messages")
        if "||" in tag:
            each = [part for part in map(str.strip, tag.split("||")) if part]
            raise InvalidRequestError(
                f"tags is {shown(tag)}; use each tag alone: {shown(each or ['a', 'b'])}"
            )


_BY_NAME: Final[Mapping[str, Check]] = {
    "tags": _check_tags,
    "position": _check_position,
    "until": _check_position,
    "consistency": _check_consistency,
    "decision": _check_decision,
    "directory": check_path,
    "offsets_path": check_path,
}
_BY_TYPE: Final[Mapping[Any, Check]] = {
    int: check_number,
    float: check_real,
    str: check_text,
    bool: functools.partial(_check_kind, bool, "True or False"),
    Queue: _check_queue,
    Message: _check_message,
    MessageBatch: _check_batch,
    Receipt: _check_receipt,
}
_TEXTS: Final = (str, bytes, bytearray, memoryview)


def check_for(name: str, annotation: Any) -> Check | None:
    """Return the check of a parameter by its annotation; None: it may be anything."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    members = typing.get_args(annotation) if is_union else (annotation,)
    kinds = [member for member in members if member is not type(None)]
    if name not in _BY_NAME and Any in kinds:
        return None
    by_name = None if kinds == [int] else _BY_NAME.get(name)
    check = by_name or _one_of([_check_one(name, kind) for kind in kinds])
    if len(kinds) == len(members):
        return check
    return lambda name, value: None if value is None else check(name, value)


def _one_of(checks: Sequence[Check]) -> Check:
    """Return a check that accepts what at least one of the checks accepts."""
    if len(checks) == 1:
        return checks[0]

    def check(name: str, value: Any) -> None:
        wanted = []
        for single in checks:
            try:
                single(name, value)
                return
            except WrongTypeError as error:
                about, _, use = str(error).rpartition("; use ")
                if not about.startswith(f"{name} is {shown(value)}, "):
                    raise  # The kind is right, a part of it is not.
                wanted.append(use)
        raise wrong_type(name, value, " or ".join(wanted))

    return check


def _check_one(name: str, annotation: Any) -> Check:
    if annotation in _BY_TYPE:
        assert annotation not in (int, float) or name in RANGES, f"no range of {name}"
        return _BY_TYPE[annotation]
    origin: Any = typing.get_origin(annotation)
    inner = typing.get_args(annotation)
    if origin is Literal:
        return functools.partial(_check_literal, inner)
    if origin is tuple and inner[-1] is not ...:
        return _check_queue if len(inner) == 2 else _check_queue_offset
    if origin is Callable:
        return functools.partial(_check_kind, Callable, "a function")
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        of_key, of_value = (check_for(name, part) for part in inner)
        return functools.partial(_check_mapping, of_key, of_value)
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return functools.partial(_check_each, check_for(name, inner[0]))
    assert inspect.isclass(annotation), f"{name}: no check of {annotation}"
    return functools.partial(_check_class, annotation)


def _check_literal(allowed: Sequence[Any], name: str, value: Any) -> None:
    if not isinstance(value, tuple({type(choice) for choice in allowed})):
        raise wrong_type(name, value, " or ".join(map(repr, allowed)))
    if value not in allowed:
        choice = ", ".join(map(repr, allowed))
        raise InvalidRequestError(f"{name} is {shown(value)}; use one of {choice}")


def _check_each(each: Check | None, name: str, value: Any) -> None:
    if isinstance(value, (*_TEXTS, Mapping)) or not isinstance(value, Collection):
        raise wrong_type(name, value, "a list")
    if each is not None:
        for item in value:
            each(name, item)


def _check_mapping(of_key: Check | None, of_value: Check | None, name: str, value: Any) -> None:
    _check_kind(Mapping, "a dict", name, value)
    for key, other in value.items():
        if of_key is not None:
            of_key(name, key)
        if of_value is not None:
            of_value(name, other)


def _check_class(wanted: type, name: str, value: Any) -> None:
    _check_kind(wanted, f"a {wanted.__name__}", name, value)
    if issubclass(wanted, Message):
        _check_message(name, value)


def check_fields(made: Any) -> None:
    """Check all fields of a dataclass by their annotations."""
    for name, annotation in typing.get_type_hints(type(made)).items():
        check = check_for(name, annotation)
        if check is not None:
            check(name, getattr(made, name))


# The wrappers.


class ArgumentChecks:
    """The checks of one function, made at its first call: by then all names are known."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @functools.cached_property
    def _plan(self) -> tuple[list[str], str, dict[str, Check | None]]:
        """The names by position, that of all others, and the checks by name. Several threads may
        make them at once, with equal results."""
        hints = typing.get_type_hints(self._function)
        names, rest, checks = list[str](), "", dict[str, Check | None]()
        for name, parameter in inspect.signature(self._function).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue  # Passed on to a call that knows their names.
            if parameter.kind is parameter.VAR_POSITIONAL:
                rest = name
            else:
                names.append(name)
            checks[name] = None if name == "self" else check_for(name, hints.get(name, Any))
        return names, rest, checks

    @property
    def checks(self) -> dict[str, Check | None]:
        """The checks by parameter."""
        return self._plan[2]

    def check(
        self, args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Check the arguments of a call and return them; the call itself refuses those of another
        signature."""
        names, rest, checks = self._plan
        others = ((rest, value) for value in args[len(names) :])
        for name, value in (*zip(names, args, strict=False), *others, *named.items()):
            if (check := checks.get(name)) is not None:
                check(name, value)
        return args, named


def _preparing(function: Callable[..., Any], prepare: Callable[..., Any]) -> Any:
    """Return a function that calls this one with what `prepare` makes of its arguments."""
    call: Any
    if inspect.iscoroutinefunction(function):

        async def call(*args: Any, **named: Any) -> Any:
            args, named = prepare(args, named)
            return await function(*args, **named)
    else:

        def call(*args: Any, **named: Any) -> Any:
            args, named = prepare(args, named)
            return function(*args, **named)

    return functools.update_wrapper(call, function)


def checked_call(function: _Function) -> _Function:
    """Wrap a function so that its arguments are checked before it runs."""
    plan = ArgumentChecks(function)
    call = _preparing(function, plan.check)
    call.plan = plan
    return typing.cast(_Function, call)


def takes_fields(
    kind: Callable[_P, _Value],
) -> Callable[[Callable[[_Owner, _Value], _T]], Callable[Concatenate[_Owner, _P], _T]]:
    """Have a method that takes a value of a dataclass take its fields, with their defaults."""
    fields = inspect.signature(kind)

    def wrap(method: Callable[[_Owner, _Value], _T]) -> Callable[Concatenate[_Owner, _P], _T]:
        def value_of(args: Sequence[Any], named: Mapping[str, Any]) -> Any:
            owner, *args = args
            try:
                fields.bind(*args, **named)
            except TypeError as error:
                raise TypeError(f"{method.__qualname__}() {error}") from None
            return (owner, kind(*args, **named)), {}

        call = _preparing(method, value_of)
        owner, _ = (own := inspect.signature(method)).parameters.values()
        call.__signature__ = own.replace(parameters=[owner, *fields.parameters.values()])
        call.__annotations__ = typing.get_type_hints(kind)
        return typing.cast(Callable[Concatenate[_Owner, _P], _T], call)

    return wrap


def shows_options_of(other: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Have a function that hands `**options` on to another call show the parameters of that one."""
    named = [p for p in inspect.signature(other).parameters.values() if p.kind is p.KEYWORD_ONLY]

    def wrap(function: _Function) -> _Function:
        own = inspect.signature(function)
        rest = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = own.replace(parameters=[*rest, *named])
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__annotations__ = {p.name: p.annotation for p in (*rest, *named)}
        return function

    return wrap


def checked(kind: _Class) -> _Class:
    """Wrap all public methods of a class so that they check their arguments."""
    for name, value in list(vars(kind).items()):
        is_public = not name.startswith("_") and inspect.isfunction(value)
        is_open = is_public and not hasattr(value, "plan")
        if is_open and len(inspect.signature(value).parameters) > 1:
            setattr(kind, name, checked_call(value))
    return kind


def checks_itself(function: _Function) -> _Function:
    """Mark a method that checks its arguments itself, or passes them to one that does."""
    function.plan = None  # type: ignore[attr-defined]
    return function


def check_token(token: str) -> None:
    """Raise InvalidRequestError for a text that is no token; empty: there is none."""
    if token and (fault := fault_of_token(token)):
        do = "hand over the line in the file that 'qlog user' wrote, not the name of the file"
        error = InvalidRequestError(f"this is no token: {fault}; {do}")
        error.cause = fault
        raise error
