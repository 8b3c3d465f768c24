"""Logs which files of a log retention has deleted, uniformly for both ways to replicate."""

from typing import Final

import structlog

_log: Final = structlog.get_logger(component="maintenance")


def say_deleted(file_count: int, for_room_count: int, **first_kept: int) -> None:
    """Log that files were deleted from the log, and by which rule."""
    expired_count = file_count - for_room_count
    if expired_count:
        _log.info("deletes expired files", file_count=expired_count, **first_kept)
    if for_room_count:
        _log.warning(
            "deletes files that have not expired, as the disk is full and delete_when_full is set",
            file_count=for_room_count,
            **first_kept,
        )
