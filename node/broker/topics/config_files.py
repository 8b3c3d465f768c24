"""Topics, groups and offsets as the files of RocketMQ: exported, and imported from such files.

Owns the two calls; `checkpoint_tables` owns the shapes, `config_import` what an import may change.
All of an import is one entry, so it happens as a whole.
"""

import asyncio
from typing import Final

from node.broker.append.own_appends import OwnAppends
from node.broker.core.context import Context
from node.broker.topics.config_import import DELAYS, NAMES, ImportPlan
from node.state.checkpoint_tables import files_of
from node.state.state import StateImage
from quorumlog.foreign_text import shown
from quorumlog.pb.retry_pb2 import (
    ConfigFile,
    ExportConfigFilesRequest,
    ExportConfigFilesResponse,
    ImportConfigFilesRequest,
    ImportConfigFilesResponse,
)

_SHOWN_MAX: Final = 1_000  # Limit of one answer and kind: what an operator corrects at once.


class ConfigFiles:
    """The calls about RocketMQ's files. One per broker."""

    def __init__(self, context: Context, own_appends: OwnAppends) -> None:
        self._context: Final = context
        self._own_appends = own_appends

    async def export_config_files(
        self, _request: ExportConfigFilesRequest
    ) -> ExportConfigFilesResponse:
        """Return the files as of everything that was acknowledged before the call."""
        context = self._context
        context.check_leads()
        image, now_unix_ms = context.machine.image(), context.unix_ms()
        # Not on the loop: many offsets are megabytes of text.
        texts = await asyncio.to_thread(_texts, image, now_unix_ms)
        files = [ConfigFile(name=name, text=text) for name, text in texts.items()]
        return ExportConfigFilesResponse(files=files)

    async def import_config_files(
        self, request: ImportConfigFilesRequest
    ) -> ImportConfigFilesResponse:
        """Create topics, groups and offsets from files; all of it or, with the reasons, nothing.

        Changes by other calls at the same moment may still forbid a part: the reason is among the
        refusals. Raises LimitExceededError for more than one entry can hold, and as
        `OwnAppends.write`.
        """
        context = self._context
        context.check_cluster(request.cluster_id)
        context.check_leads()
        files = {file.name: file.text for file in request.files}
        plan = await asyncio.to_thread(ImportPlan, context, context.machine.image(), files)
        response = ImportConfigFilesResponse(
            refusals=_shown(plan.refusals),
            skipped=_shown(plan.skipped),
            warnings=_shown(plan.warnings),
        )
        if plan.refusals:
            return response
        if plan.commands and not request.is_dry_run:
            written = await self._own_appends.write(b"", plan.commands)
            positions = written.result.record_positions
            refused = map(context.machine.take_refusal, positions)
            response.refusals.extend(str(refusal) for refusal in refused if refusal is not None)
        response.topic_count = plan.topic_count
        response.group_count = plan.group_count
        response.offset_count = plan.offset_count
        return response


def _shown(lines: list[str]) -> list[str]:
    """Return as many as an answer holds; the last one says how many are left out."""
    lines = [shown(line) for line in lines]  # Names of others may have no UTF-8.
    if len(lines) <= _SHOWN_MAX:
        return lines
    left = len(lines) - _SHOWN_MAX + 1
    return [*lines[: _SHOWN_MAX - 1], f"and {left} more"]


def _texts(image: StateImage, unix_ms: int) -> dict[str, str]:
    """Return the text of each file of RocketMQ."""
    files = (file for file in files_of(image) if file.name in NAMES)
    texts = {file.name: file.encode(image, unix_ms) for file in files}
    texts.setdefault(DELAYS, '{\n\t"offsetTable":{}\n}\n')
    return texts
