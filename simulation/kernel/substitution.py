"""Putting simulated parts in the place of real ones, in our own modules, for a while.

Owns the replacement by identity: wherever a module of ours holds a real part, as a name, a default
of an argument or an attribute of a class, it holds the simulated one until `undo`. Libraries and
the interpreter keep the real ones. The shipped code so needs no switch for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final


class Substitution:
    """The replacements of one world. `undo` brings the real parts back."""

    def __init__(self, packages: Iterable[str]) -> None:
        """`packages`: whose modules are changed, as far as they are imported."""
        self._packages: Final = tuple(packages)
        self._undo: list[tuple[Any, str, Any]] = []

    def replace(self, table: Mapping[Any, Any]) -> None:
        """Put the values of the table in the place of its keys, everywhere."""
        by_id = {id(real): simulated for real, simulated in table.items()}
        seen: set[int] = set()
        for module in self._modules():
            for name, value in list(vars(module).items()):
                if id(value) in by_id:
                    self._set(module, name, by_id[id(value)])
                else:
                    self._inside(value, module.__name__, by_id, seen)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace one attribute of a class or a module."""
        self._set(owner, name, value)

    def undo(self) -> None:
        """Bring all real parts back."""
        while self._undo:
            owner, name, value = self._undo.pop()
            setattr(owner, name, value)

    def _modules(self) -> Iterator[ModuleType]:
        for name, module in sorted(sys.modules.items()):
            if name.partition(".")[0] in self._packages and module is not None:
                yield module

    def _set(self, owner: Any, name: str, value: Any) -> None:
        own = getattr(owner, "__dict__", {})  # A method of a class, not what it is bound to.
        self._undo.append((owner, name, own[name] if name in own else getattr(owner, name)))
        setattr(owner, name, value)

    def _inside(self, value: Any, module: str, by_id: dict[int, Any], seen: set[int]) -> None:
        if id(value) in seen or getattr(value, "__module__", None) != module:
            return
        seen.add(id(value))
        if isinstance(value, type):
            for name, inner in list(vars(value).items()):
                if id(inner) in by_id:
                    self._set(value, name, by_id[id(inner)])
                elif isinstance(inner, staticmethod) and id(inner.__func__) in by_id:
                    self._set(value, name, staticmethod(by_id[id(inner.__func__)]))
                elif isinstance(inner, staticmethod | classmethod):
                    self._inside(inner.__func__, module, by_id, seen)
                elif isinstance(inner, property) and inner.fget is not None:
                    self._inside(inner.fget, module, by_id, seen)
                else:
                    self._inside(inner, module, by_id, seen)
        elif isinstance(value, FunctionType):
            self._defaults(value, by_id)

    def _defaults(self, function: FunctionType, by_id: dict[int, Any]) -> None:
        positional, named = function.__defaults__, function.__kwdefaults__
        if positional and any(id(one) in by_id for one in positional):
            found = tuple(by_id.get(id(one), one) for one in positional)
            self._set(function, "__defaults__", found)
        if named and any(id(one) in by_id for one in named.values()):
            found_named = {name: by_id.get(id(one), one) for name, one in named.items()}
            self._set(function, "__kwdefaults__", found_named)
        for cell in function.__closure__ or ():  # Where dataclasses hold a default factory.
            try:
                inner = cell.cell_contents
            except ValueError:  # It holds nothing yet.
                continue
            if id(inner) in by_id:
                self._set(cell, "cell_contents", by_id[id(inner)])
