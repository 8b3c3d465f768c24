"""Made-up histories of the kind that the clients of a run write down: clean ones, as long as asked.

They are right by construction: each is made in the order in which things took effect.
"""

from random import Random

from chaos.clients import LOG_QUEUES, REGISTER_QUEUE, queue_name

from checkers.history import Drain, Kind, Operation, Seen
from raft.errors import Outcome
from tests.checkers.histories import clean_history

REPLICAS = (1, 2, 3)
REGISTER = queue_name(REGISTER_QUEUE)


def clean(seed: int, count: int) -> tuple[list[Operation], list[Drain]]:
    """Return a right history of so many operations, a quarter of each queue, and the drains."""
    random = Random(seed)
    operations, drains = _register(random, count // 4)
    for queue in LOG_QUEUES:
        of_queue, of_replicas = clean_history(random, count // 4)
        operations += [
            op._replace(queue=queue_name(queue), process=10 * op.process + queue) for op in of_queue
        ]
        drains += [drain._replace(queue=queue_name(queue)) for drain in of_replicas]
    return [op._replace(op_id=at) for at, op in enumerate(operations)], drains


def _register(random: Random, count: int) -> tuple[list[Operation], list[Drain]]:
    """Return puts, some of unknown outcome, and gets of one register; calls overlap."""
    operations, values = list[Operation](), list[str]()
    for at in range(count):
        span = 100 * at - random.randrange(300), 100 * at + random.randrange(1, 300)
        call = Operation(at, 10 * at + 9, Kind.GET, REGISTER, *span, Outcome.APPLIED, None, None)
        if random.random() < 0.6:
            values.append(f"{REGISTER}-{at}")
            call = call._replace(kind=Kind.PUT, request=values[-1], result=len(values) - 1)
            if random.random() < 0.02:
                call = call._replace(outcome=Outcome.UNKNOWN, return_ns=None, result=None)
        else:
            call = call._replace(result=Seen(values[-1] if values else None, len(values) - 1))
        operations.append(call)
    return operations, [Drain(replica, REGISTER, 0, list(values)) for replica in REPLICAS]
