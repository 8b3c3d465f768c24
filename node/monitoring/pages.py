"""The pages that a node shows: /status and /metrics, put together from what each part adds.

Owns the list of sources. The start of a node adds the source of each part as soon as it is made, so
a page shows what there is, and no source asks whether a part exists. Must not know the parts.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from node.monitoring.metric import Source

StatusSource = Callable[[], dict[str, Any]]


class Pages:
    """The sources of the pages. Any thread may read them; the loop adds to them."""

    def __init__(self) -> None:
        self._status: list[StatusSource] = []
        self._looks: list[Callable[[], Awaitable[None]]] = []
        self.metrics: list[Source[Any]] = []

    def add_status(self, source: StatusSource) -> None:
        """Show what this source returns from now on."""
        self._status.append(source)

    def add_metrics(self, *sources: Source[Any]) -> None:
        """Show the metrics of these tables from now on."""
        self.metrics.extend(sources)

    def add_look(self, look: Callable[[], Awaitable[None]]) -> None:
        """Await this before /metrics: what its sources say is too much to read in one turn."""
        self._looks.append(look)

    async def look(self) -> None:
        """Have the sources of /metrics look at what they are about."""
        for look in self._looks:
            await look()

    def status(self) -> dict[str, Any]:
        """Return the content of /status; of a key that several sources have, the last value."""
        fields: dict[str, Any] = {}
        for source in self._status:
            fields |= source()
        return fields
