"""Ends of node processes: the ends a scenario asked for, the actual ones, their dumps (I17).

Owns the rule: a process ends only when it was ended or may end, with a status that was named
beforehand; and only an end with a status of `_WITH_DUMP` leaves a dump. Must not know how a process
is started, or what a node is. An end that no scenario asked for is a defect, however well
everything continues afterwards.
"""

import signal
import threading
from dataclasses import dataclass
from typing import Final

from deploy.local import LocalCluster
from deploy.local_process import NodeProcess

STOPPED: Final = 0
KILLED: Final = -signal.SIGKILL
EXIT_BAD_DATA: Final = 65
EXIT_BROKEN: Final = 70
EXIT_SYNC_FAILED: Final = 74
_WITH_DUMP: Final = frozenset({EXIT_BROKEN, EXIT_SYNC_FAILED})


@dataclass(frozen=True, slots=True)
class _End:
    """One actual end."""

    node: int
    process: NodeProcess
    dumps: tuple[str, ...]

    def problem(self, allowed: frozenset[int]) -> str | None:
        """Return the problem with this end, if any."""
        code = self.process.exit_code
        left = f", and left {', '.join(self.dumps)}" if self.dumps else ""
        # The status of a process that another command started is unknown.
        if not allowed or (code is not None and code not in allowed):
            status = "an unknown status" if code is None else str(code)
            wanted = f"expected {sorted(allowed)}" if allowed else "which was not expected"
            return f"I17: node {self.node} ended with {status}, {wanted}{left}"
        if self.dumps and code not in _WITH_DUMP:
            return f"I17: node {self.node} ended with {code} as expected{left}"
        return None


class ProcessEnds:
    """The ends of all processes of one cluster. Safe from any thread."""

    def __init__(self, nodes: LocalCluster) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._open: dict[NodeProcess, int] = {}
        """Processes that ran at the last look."""
        self._allowed: dict[NodeProcess, frozenset[int]] = {}
        self._ended: list[_End] = []

    def watch(self, node: int) -> None:
        """Watch the current process of a node."""
        process = self._nodes.process(node)
        with self._lock:
            if process is not None and process not in self._allowed:
                self._open[process] = node
                self._allowed[process] = frozenset()

    def allow(self, node: int, *codes: int) -> None:
        """Let the last process of a node end with one of these statuses, now or earlier."""
        process = self._nodes.process(node)
        with self._lock:
            if process in self._allowed:
                self._allowed[process] |= set(codes)

    def look(self) -> None:
        """Note ended processes and their dumps: their directory may be removed next."""
        with self._lock:
            for process, node in tuple(self._open.items()):
                if not process.is_alive:
                    del self._open[process]
                    data = self._nodes.node_directory(node) / "data"
                    dumps = sorted(path.name for path in data.glob(f"dump-*-{process.pid}.txt"))
                    self._ended.append(_End(node, process, tuple(dumps)))

    def take(self) -> list[str]:
        """Return the problems of the ends since the last call."""
        self.look()
        with self._lock:
            ends, self._ended = self._ended, []
            problems = [end.problem(self._allowed.pop(end.process)) for end in ends]
            # A process that still runs may not end in the next scenario as this one allowed.
            self._allowed = dict.fromkeys(self._open, frozenset())
            return [problem for problem in problems if problem is not None]
