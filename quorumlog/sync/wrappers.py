"""Blocking names for asynchronous ones: each wrapper keeps the arguments and the documentation.

Owns the passage between the calling thread and the loop's thread; must not know what is called. A
blocking class holds the object that it stands for as `_inner`, and names its methods:
`flush = blocking(Producer.flush)`.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from quorumlog.cluster.close_once import failures_beside
from quorumlog.cluster.forks import forks
from quorumlog.sync.loop_thread import loop_thread

_P = ParamSpec("_P")
_T = TypeVar("_T")
_A = TypeVar("_A")
_Made = TypeVar("_Made")


class Wrapper(Generic[_A]):
    """An object with blocking names, and the asynchronous one that it stands for."""

    def __init__(self, inner: _A) -> None:
        self._inner = inner


class ClosingWrapper(Wrapper[_A]):
    """The same for an object that is closed, as `with` does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        with failures_beside(error):
            self.close()  # type: ignore[attr-defined]  # Each with the arguments of its own.


class Same(Generic[_T]):
    """An attribute of the asynchronous object, under the same name."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, wrapper: None, kind: type) -> Self: ...
    @overload
    def __get__(self, wrapper: Wrapper[Any], kind: type) -> _T: ...
    def __get__(self, wrapper: Wrapper[Any] | None, kind: type) -> _T | Self:
        return self if wrapper is None else getattr(wrapper._inner, self._name)


def blocking(
    method: Callable[Concatenate[_A, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, _P], _T]:
    """Return the blocking method of the same name, arguments and documentation."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return loop_thread.call(method(self._inner, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def closing(
    method: Callable[Concatenate[_A, _P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Any, _P], None]:
    """Return the same for a method that closes: harmless once the last client is closed."""
    close = blocking(method)

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        forks.check()
        if loop_thread.is_running:
            close(self, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


def plain(method: Callable[Concatenate[_A, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Return the same for a method that does not wait; it, too, must run in the loop."""

    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return loop_thread.call_plain(lambda: method(self._inner, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def into(kind: Callable[[_T], _Made], make: Callable[_P, _T]) -> Callable[_P, _Made]:
    """Return `make` with its result in a wrapper of that kind."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _Made:
        return kind(make(*args, **kwargs))

    functools.update_wrapper(call, make)
    made = kind if isinstance(kind, type) else inspect.signature(kind).return_annotation
    signature = inspect.signature(make).replace(return_annotation=made)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
