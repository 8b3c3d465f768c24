"""The client's half of pop: making a pop consumer.

Owns the arguments; must not know how messages are received. `quorumlog.client.Client` is the one
subclass.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from quorumlog.arguments import checked
from quorumlog.client_parts import Parts
from quorumlog.consume.pop import INVISIBLE_S, PopConsumer, PopOptions, Start


@checked
class PopClient(ABC):
    """Makes pop consumers."""

    _timeout_ms: int

    @abstractmethod
    def _started(self) -> Parts: ...

    @abstractmethod
    def _keep(self, made: Any) -> Any: ...

    def pop_consumer(
        self,
        group: str,
        topics: str | Sequence[str],
        *,
        invisible: float = INVISIBLE_S,
        fifo: bool = False,
        start: Start = "first",
        tags: Sequence[str] = (),
        sql: str = "",
        timeout_ms: int | None = None,
    ) -> PopConsumer:
        """Make a consumer that takes single messages and acknowledges each by itself.

        A message that is not acknowledged within `invisible` seconds comes again. With `fifo` no
        message of a message group is handed out while an earlier one is in flight. `start`
        ("first", "end") is the beginning of queues without a stored offset of the group. Messages
        without one of the `tags`, or for which the property filter `sql` is not true, count as
        done.
        """
        options = PopOptions.of(invisible, tags, sql, fifo, start, timeout_ms or self._timeout_ms)
        names = [topics] if isinstance(topics, str) else list(topics)
        consumer = PopConsumer(self._started().groups, group, names, options)
        self._keep(consumer)
        return consumer
