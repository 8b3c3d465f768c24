"""Stand-ins for modules of Python: some names are simulated, some are the real ones.

Owns the rule for all others: they raise NotImplementedError, so that no reader takes for simulated
what is not. Names in capitals are constants, and the real ones.
"""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, NoReturn

from simulation.kernel.hub import Hub


class SimulatedModule:
    """A module, for the processes of one world. What a subclass defines is simulated."""

    real: ClassVar[ModuleType]
    real_names: ClassVar[frozenset[str]] = frozenset()
    """What of the real module tells no time, draws no lot and reaches nothing outside."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper() or name in self.real_names:
            return getattr(self.real, name)
        raise NotImplementedError(f"{self.real.__name__}.{name} is not simulated")

    def parts(self) -> dict[Any, Any]:
        """Return what is put in the place of the module, and of each of its functions and classes:
        a module of ours may hold one directly."""
        found: dict[Any, Any] = {self.real: self}
        for name, real in vars(self.real).items():
            if name in self.real_names or name.startswith("__"):
                continue
            if name in vars(self) or name in dir(type(self)):
                found[real] = getattr(self, name)
            elif name.startswith("_"):  # What the module holds of others, under its own name.
                continue
            elif isinstance(real, FunctionType | BuiltinFunctionType | MethodType):
                found[real] = _refusing(f"{self.real.__name__}.{name}")
        return found


def _refusing(name: str) -> Any:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"{name} is not simulated")

    return refuse
