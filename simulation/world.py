"""A world: time, network and machines, and our modules with simulated parts in them.

Owns what is put in the place of what, and that all of it is as before when the world ends. One
world at a time; it is a context manager:

    with World(seed) as world:
        machine = world.add_machine()
        process = machine.run("node", main)
        world.run_s(10)
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import pkgutil
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import structlog

from simulation.kernel.hub import NS_PER_MS, NS_PER_S, Hub
from simulation.kernel.process import Process
from simulation.kernel.substitution import Substitution
from simulation.kernel.threads import SimulatedExecutor, Threads
from simulation.machines import modules
from simulation.machines.files import disk_parts
from simulation.machines.machine import Machine
from simulation.network.sockets import Sockets
from simulation.network.transport import Network

PACKAGES: Final = ("store", "raft", "node", "quorumlog")
"""Whose modules run in a world."""
_NOT_OF_A_NODE: Final = (
    *("node.offline", "qlog", "quorumlog.pb", "quorumlog.sync", "quorumlog.testing"),
)
"""Modules, and packages with all below them, whose code runs in no world."""
MEMORY_DIRECTORY: Final = "/dev/shm"
_imported: list[str] = []


class LogLine:
    """One line that a process logged."""

    __slots__ = ("at_ns", "event", "fields", "level", "process")

    def __init__(self, at_ns: int, process: str, level: str, fields: dict[str, Any]) -> None:
        self.at_ns, self.process, self.level = at_ns, process, level
        self.event = str(fields.pop("event", ""))
        self.fields = fields

    def __str__(self) -> str:
        more = " ".join(f"{name}={value}" for name, value in self.fields.items())
        return f"{self.at_ns // NS_PER_MS:8} {self.process} {self.level} {self.event} {more}"


class _LogHandler(logging.Handler):
    """Takes what processes log by the library of Python, too: it would be on stderr."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note(record.levelname.lower(), {"event": self.format(record)})


class World:
    """One world. Enter it before anything of it is made."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.seed: Final = seed
        self.hub: Final = Hub(seed)
        if is_traced:
            self.hub.trace = []
        self.network: Final = Network(self.hub)
        self.machines: Final[list[Machine]] = []
        self.log: Final[list[LogLine]] = []
        """What the processes logged, oldest first."""
        self._substitution = Substitution(PACKAGES)
        self._root: Path | None = None
        self._logging: dict[str, Any] = {}
        self._handler = _LogHandler(self)
        self._was_collecting = False

    def __enter__(self) -> Self:
        _import_all()
        root = MEMORY_DIRECTORY if os.path.isdir(MEMORY_DIRECTORY) else None
        self._root = Path(tempfile.mkdtemp(prefix="world-", dir=root))
        self._substitution.replace(self.parts())
        self._logging = structlog.get_config()
        structlog.configure(processors=[self._take_line], cache_logger_on_first_use=False)
        logging.getLogger().addHandler(self._handler)
        # What a collection finds, and when, depends on the interpreter; `__del__` is code, too.
        self._was_collecting = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines:
            for process in list(machine.processes):
                process.kill()
            machine.disk.drop()
        self._substitution.undo()
        if self._was_collecting:
            gc.enable()
        logging.getLogger().removeHandler(self._handler)
        structlog.configure(**self._logging)
        assert self._root is not None
        shutil.rmtree(self._root, ignore_errors=True)

    # --- Making and running ---

    def add_machine(self) -> Machine:
        """Add a machine with an empty disk."""
        assert self._root is not None, "a world is entered first"
        number = len(self.machines) + 1
        machine = Machine(self.hub, self.network, number, self._root / f"host{number}")
        self.machines.append(machine)
        return machine

    def run_s(self, seconds: float) -> None:
        """Let time pass."""
        self.hub.run(self.hub.now_ns + int(seconds * NS_PER_S))

    def run_until(self, is_over: Any, seconds_max: float) -> bool:
        """Let time pass until `is_over()` is true; return False if it did not become true."""
        if not is_over():
            self.hub.run(self.hub.now_ns + int(seconds_max * NS_PER_S), is_over=is_over)
        return bool(is_over())

    # --- Parts ---

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace one attribute of what ships, while this world lasts."""
        self._substitution.put(owner, name, value)

    def parts(self) -> dict[Any, Any]:
        """Return the simulated parts of this world, by the real ones."""
        hub = self.hub
        return {
            **modules.Time(hub).parts(),
            **Threads(hub).parts(),
            **Sockets(hub).parts(),
            **modules.Secrets(hub).parts(),
            **modules.Uuid(hub).parts(),
            **modules.Lots(hub).parts(),
            **modules.Gc(hub).parts(),
            ThreadPoolExecutor: partial(SimulatedExecutor, hub),
            **disk_parts(hub, self.machines),
        }

    def note(self, level: str, fields: dict[str, Any]) -> None:
        """Note a line of the log of the process that runs."""
        process = self.hub.current
        name = process.name if isinstance(process, Process) else "world"
        self.log.append(LogLine(self.hub.now_ns, name, level, fields))

    def _take_line(self, _logger: Any, level: str, fields: Any) -> Any:
        self.note(level, dict(fields))
        raise structlog.DropEvent


def _import_all() -> None:
    """Import all modules that may run in a world: one imported later would see real parts."""
    if _imported:
        return
    for package in PACKAGES:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if is_of_a_node(module.name):
                importlib.import_module(module.name)
                _imported.append(module.name)


def is_of_a_node(module: str) -> bool:
    """Whether a module may run in a world, by its name."""
    if module.endswith(".__main__"):
        return False
    return not any(module == one or module.startswith(f"{one}.") for one in _NOT_OF_A_NODE)
