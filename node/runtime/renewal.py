"""Files of settings that are read again while the node runs: certificates, keys and secrets.

Owns when they are looked at, and what happens to content that cannot be used: the old one stays,
with a warning. Must not know what a file holds.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from node.errors.common import NodeError
from quorumlog.user_files import UserFileError, read_user_file

_LOOK_S: Final = 2.0
_log: Final = structlog.get_logger(component="files")

Make = Callable[[], Callable[[], None]]
"""Makes everything of the files, on any thread, and returns what takes it into use, on the loop.
Raises NodeError or UserFileError, and changes nothing then."""


class _Watched:
    """Files that change together."""

    def __init__(self, what: str, paths: Sequence[Path], make: Make) -> None:
        self.what, self.make, self._paths = what, make, paths
        self.used = self.content()
        self.trouble = ""
        """Why other content is not used; empty: there is none."""

    def content(self) -> list[bytes | str]:
        """Return what each file holds, or why it cannot be read."""
        return [_content(path) for path in self._paths]


def _content(path: Path) -> bytes | str:
    try:
        return read_user_file(path)
    except UserFileError as error:
        return error.what


class Renewals:
    """All watched files of a node. For one event loop."""

    def __init__(self) -> None:
        self.renewed_total = self.refused_total = 0
        self._all: list[_Watched] = []

    def watch(self, what: str, paths: Sequence[Path], make: Make) -> None:
        """Have files looked at that hold `what`. Call it before they are used for the first
        time."""
        self._all.append(_Watched(what, paths, make))

    def warnings(self) -> list[str]:
        """Return the warnings for an operator, as sentences."""
        text = "the node continues with the old {}: {}"
        return [text.format(each.what, each.trouble) for each in self._all if each.trouble]

    async def run(self) -> None:
        """Look at the files at intervals, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for each in self._all:
                await self._look(each)

    async def _look(self, each: _Watched) -> None:
        content = await asyncio.to_thread(each.content)
        if content == each.used:
            each.trouble = ""
            return
        try:
            take = await asyncio.to_thread(each.make)
        except (NodeError, UserFileError) as error:
            text = "; ".join(map(str, error.args)) if isinstance(error, UserFileError) else error
            if str(text) != each.trouble:
                each.trouble = str(text)
                self.refused_total += 1
                _log.warning(f"the node continues with the old {each.what}", error=each.trouble)
            return
        if content != await asyncio.to_thread(each.content):
            return  # They are being written.
        take()
        each.used, each.trouble = content, ""
        self.renewed_total += 1
        _log.info(f"the node uses the new {each.what}")
