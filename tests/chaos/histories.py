"""Made-up histories of the kind that the clients of a run write down: clean ones, as long as asked.

A clean history is made in the order in which things took effect, so it is right by construction;
calls overlap, some stay unknown, of which some happened, and some were refused.
"""

from random import Random

from chaos.clients import LOG_QUEUES, REGISTER_QUEUE, queue_name

from checkers.history import (
    AppendCall,
    Drain,
    HistoryReceipt,
    Kind,
    Operation,
    ReadCall,
    Records,
    Request,
    Result,
    Seen,
)
from raft.errors import Outcome

REPLICAS = (1, 2, 3)
REGISTER = queue_name(REGISTER_QUEUE)


class Maker:
    """Builds one history."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.operations: list[Operation] = []
        self.logs: dict[str, list[str]] = {queue_name(queue): [] for queue in LOG_QUEUES}
        self.logs[REGISTER] = []
        self.now_ns = 1_000
        self._polled: dict[tuple[int, str], int] = {}
        self._process = 1_000

    def _call(
        self,
        kind: Kind,
        queue: str,
        request: Request,
        result: Result,
        *,
        process: int = 0,
        outcome: Outcome = Outcome.APPLIED,
    ) -> None:
        """One call around this moment; calls of one process do not overlap."""
        self.now_ns += 100
        if not process:
            self._process += 1
        spread = 400 if not process else 40
        returned = self.now_ns + self.random.randrange(1, spread)
        self.operations.append(
            Operation(
                len(self.operations),
                process or self._process,
                kind,
                queue,
                self.now_ns - self.random.randrange(1, spread),
                None if outcome is Outcome.UNKNOWN else returned,
                outcome,
                request,
                result,
            )
        )

    def write(self, queue: str) -> None:
        """An append or a put: acked, unknown and there, unknown and not, or refused."""
        log, value = self.logs[queue], f"{queue}-{len(self.operations)}"
        is_put = queue == REGISTER
        kind = Kind.PUT if is_put else Kind.APPEND
        request: Request = value if is_put else AppendCall(value)
        fate = self.random.random()
        if fate < 0.96:
            result: Result = len(log) if is_put else HistoryReceipt(len(log))
            log.append(value)
            self._call(kind, queue, request, result)
        elif fate < 0.98:
            outcome = Outcome.UNKNOWN
            if fate < 0.97:
                log.append(value)
            self._call(kind, queue, request, None, outcome=outcome)
        else:
            self._call(kind, queue, request, None, outcome=Outcome.NOT_APPLIED)

    def read(self, queue: str) -> None:
        """Any kind of read."""
        log = self.logs[queue]
        if queue == REGISTER:
            self._call(Kind.GET, queue, None, Seen(log[-1] if log else None, len(log) - 1))
            return
        choice = self.random.random()
        if choice < 0.4:
            self._call(Kind.TAIL, queue, None, len(log))
        elif choice < 0.7:
            lo = max(0, len(log) - 8)
            pairs = tuple(enumerate(log[lo:], lo))
            self._call(Kind.READ, queue, ReadCall(lo, 64), Records(pairs))
        else:
            process = self.random.randrange(1, 4)
            lo = self._polled.get((process, queue), 0)
            hi = min(len(log), lo + self.random.randrange(0, 12))
            self._polled[process, queue] = hi
            if hi > lo:
                pairs = tuple(enumerate(log[lo:hi], lo))
                call = ReadCall(lo, 0)
                self._call(Kind.POLL, queue, call, Records(pairs), process=process)

    def drains(self) -> list[Drain]:
        """What every replica holds in the end."""
        return [
            Drain(replica, queue, 0, list(log))
            for replica in REPLICAS
            for queue, log in self.logs.items()
        ]


def clean(seed: int, count: int) -> tuple[list[Operation], list[Drain]]:
    """Return a right history of about so many operations, and the drains."""
    made = Maker(Random(seed))
    queues = list(made.logs)
    while len(made.operations) < count:
        queue = made.random.choice(queues)
        if made.random.random() < 0.7:
            made.write(queue)
        else:
            made.read(queue)
    return made.operations, made.drains()
