"""The pages that a node shows: /status and /metrics, put together from what each part adds.

Owns the list of sources. The start of a node adds the source of each part as soon as it is made, so
a page shows what there is, and no source asks whether a part exists. Must not know the parts.
"""

from collections.abc import Callable, Iterator
from typing import Any

from node.monitoring.metrics import Histograms, Source
from node.replication.contract import Sample

StatusSource = Callable[[], dict[str, Any]]


class Pages:
    """The sources of the pages. Any thread may read them; the loop adds to them."""

    def __init__(self) -> None:
        self._status: list[StatusSource] = []
        self._samples: list[Source] = []
        self._histograms: list[Callable[[], Histograms]] = []

    def add(
        self,
        *,
        status: StatusSource | None = None,
        samples: Source | None = None,
        histograms: Callable[[], Histograms] | None = None,
    ) -> None:
        """Show what these sources return from now on."""
        if status is not None:
            self._status.append(status)
        if samples is not None:
            self._samples.append(samples)
        if histograms is not None:
            self._histograms.append(histograms)

    def status(self) -> dict[str, Any]:
        """Return the content of /status; of a key that several sources have, the last value."""
        found: dict[str, Any] = {}
        for source in self._status:
            found |= source()
        return found

    def samples(self) -> Iterator[Sample]:
        """Yield the value of each metric that is not a histogram."""
        for source in self._samples:
            yield from source()

    def histograms(self) -> Histograms:
        """Return the histograms by name."""
        return {name: found for source in self._histograms for name, found in source().items()}
