"""What a node says of its process to people who look for a fault elsewhere: calls of AdminService.

Owns the answers: settings with their origins and without secrets, the stacks of all threads and
tasks, and the page /metrics. Must not know gRPC. A `SharedPage` bounds what a flood of calls costs.
"""

import asyncio
import json
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any, Final

from node.config.settings import Settings
from node.config.types import plain
from node.monitoring.shared_page import SharedPage
from quorumlog.pb import admin_pb2 as pb

STACKS_SIZE_BYTES_MAX: Final = 1 << 20
_HIDDEN: Final = "set"
_STACK_DEPTH_MAX: Final = 64
_TASK_COUNT_MAX: Final = 5_000


class Diagnosis:
    """The calls of one node that tell about its process."""

    def __init__(
        self, settings: Settings, origins: Mapping[str, str], metrics_page: SharedPage
    ) -> None:
        self._settings, self._origins = settings, origins
        self._metrics_page, self._stacks_page = metrics_page, SharedPage(stacks)

    def stop(self) -> None:
        """Make no stacks any more; those who wait are cancelled."""
        self._stacks_page.stop()

    async def settings(self, _request: pb.SettingsRequest) -> pb.SettingsResponse:
        """Return each setting. The path of a file with a secret or a certificate is hidden."""
        response = pb.SettingsResponse()
        for name in Settings.model_fields:
            value = plain(getattr(self._settings, name))
            if name.endswith("_file") and value is not None:
                value = _HIDDEN
            origin = self._origins.get(name, "default")
            response.settings.add(name=name, value=json.dumps(value, default=str), origin=origin)
        return response

    async def stacks(self, _request: pb.StacksRequest) -> pb.StacksResponse:
        """Return the stacks of all threads and tasks, without values of variables."""
        return pb.StacksResponse(text=await self._stacks_page.get())

    async def metrics(self, _request: pb.MetricsRequest) -> pb.MetricsResponse:
        """Return the page /metrics, which a node without `http_listen` has as well."""
        return pb.MetricsResponse(page=await self._metrics_page.get())


def stacks() -> bytes:
    """Return the stacks of this process as text, the newest call last; the end is cut at 1 MiB.

    Without lines of source, which would be read from a disk that may hang."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = list[str]()
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {ident} {names.get(ident, 'of a library')}")
        frames = islice((frame for frame, _ in traceback.walk_stack(frame)), _STACK_DEPTH_MAX)
        lines += reversed([_line(one) for one in frames])
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    lines.append(f"{len(tasks)} tasks")
    for task in islice(tasks, _TASK_COUNT_MAX):
        lines.append(f"task {task.get_name()}")
        lines += map(_line, islice(_awaited(task), _STACK_DEPTH_MAX))
    text = "\n".join(lines) + "\n"
    return text.encode("utf-8", "backslashreplace")[:STACKS_SIZE_BYTES_MAX]


def _awaited(task: "asyncio.Task[Any]") -> Iterator[FrameType]:
    """Yield the frame of a task, and of each coroutine or generator that it waits for."""
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        for kind in ("cr", "gi", "ag"):
            if (frame := getattr(coroutine, f"{kind}_frame", None)) is not None:
                yield frame
                coroutine = getattr(coroutine, f"{kind}_{'yieldfrom' if kind == 'gi' else 'await'}")
                break
        else:
            return


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"  {code.co_filename}:{frame.f_lineno} {code.co_qualname}"
