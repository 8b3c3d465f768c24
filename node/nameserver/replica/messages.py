"""Messages between replicas: the check of their shapes, and the correction of their content.

Owns the shapes of PySyncObj's messages and the three corrections that its Raft needs (fault-matrix
7): an append never truncates entries that the leader does not contradict; a message that did not
verify our log commits no entry; an answer counts only in the term in which it was given. Must not
know sockets or PySyncObj's objects.
"""

from collections.abc import Callable
from typing import Any, Final

from node.nameserver.directory.directory import COMMAND_SIZE_BYTES_MAX
from node.nameserver.directory.fields import INTEGER_MAX
from node.nameserver.replica.journal import Journal

Message = dict[str, Any]

BATCH_SIZE_BYTES: Final = 16 * 1024 * 1024
"""Entries of one message; a command is always smaller, so it is never sent in parts."""
CHUNK_SIZE_BYTES: Final = 64 * 1024
"""Size of one part of a dump in transit."""
ENTRY_COUNT_MAX: Final = 100_000

REGULAR: Final = b"\x00"
"""First byte of a command for the state machine; the library's number."""
NO_OP: Final = b"\x01"
"""First byte of a command that changes no state; the library's number."""


def is_sound(message: object) -> bool:
    """Whether a message of a replica has one of the known shapes."""
    if not isinstance(message, dict):
        return False
    kind = message.get("type")
    check = _CHECKS.get(kind) if isinstance(kind, str) else None
    return check is not None and check(message)


def verified_append(message: Message, journal: Journal) -> tuple[Message, bool]:
    """Return an append without the entries that we have already, and whether our tail stays.

    PySyncObj removes all entries behind the one at which a message begins, and adds those of the
    message. A late or repeated message would remove entries that we acknowledged since.
    """
    if "prevLogIdx" not in message:
        # A part of a dump does not verify our log, so it commits no entry of it.
        return {**message, "commit_index": 0}, False
    verified, term = message["prevLogIdx"], message["prevLogTerm"]
    if term is None or journal.term_at(verified) != term:
        return message, False
    entries = message["entries"]
    matching = 0
    while matching < len(entries) and journal.term_at(entries[matching][1]) == entries[matching][2]:
        matching += 1
    verified += matching
    rest = entries[matching:]
    return {
        **message,
        "prevLogIdx": verified,
        "prevLogTerm": journal.term_at(verified),
        "entries": rest,
        "commit_index": min(message["commit_index"], verified + len(rest)),
    }, not rest


def held_by_leader(message: Message) -> int | None:
    """Return the last index that the sender of an append claims to hold durably; None: unknown."""
    index = message.get("prevLogIdx")
    return None if index is None else index + len(message.get("entries", ()))


def current_answer(message: Message, term: int, last_index: int) -> Message | None:
    """Return a follower's answer cut to this leader's log; None when it is of another term."""
    if message["term"] != term:
        return None
    return {**message, "next_node_idx": min(message["next_node_idx"], last_index + 1)}


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= INTEGER_MAX


def _numbers(*names: str) -> Callable[[Message], bool]:
    return lambda message: all(_is_number(message.get(name)) for name in names)


def _is_entry(value: object, index: int) -> bool:
    if not isinstance(value, list) or len(value) != 3:
        return False
    command, at, term = value
    if not isinstance(command, bytes) or not 0 < len(command) <= COMMAND_SIZE_BYTES_MAX + 1:
        return False
    return bool(at == index) and _is_number(term)


def _is_append(message: Message) -> bool:
    if not _numbers("term", "commit_index")(message) or "transmission" in message:
        return False
    if "prevLogIdx" not in message:
        return _is_chunk(message.get("serialized"))
    index, term = message["prevLogIdx"], message.get("prevLogTerm")
    if index is None and term is None:
        return True  # The leader does not know our log; our answer tells it.
    entries = message.get("entries")
    if not _is_number(index) or not _is_number(term) or not isinstance(entries, list):
        return False
    if len(entries) > ENTRY_COUNT_MAX:
        return False
    return all(_is_entry(entry, index + 1 + at) for at, entry in enumerate(entries))


def _is_chunk(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, list) or len(value) != 3:
        return False
    data, is_first, is_last = value
    if not isinstance(data, bytes) or len(data) > CHUNK_SIZE_BYTES:
        return False
    return isinstance(is_first, bool) and isinstance(is_last, bool)


def _is_command(message: Message) -> bool:
    command = message.get("command")
    if not isinstance(command, bytes) or not 1 < len(command) <= COMMAND_SIZE_BYTES_MAX + 1:
        return False
    return "request_id" not in message or _is_number(message["request_id"])


def _is_response(message: Message) -> bool:
    if "error" in message:
        return _numbers("request_id", "error")(message)
    return _numbers("request_id", "log_idx", "log_term")(message)


def _is_answer(message: Message) -> bool:
    flags = (message.get("reset"), message.get("success"))
    if not all(isinstance(flag, bool) for flag in flags):
        return False
    return _numbers("next_node_idx", "term")(message)


_CHECKS: Final[dict[str, Callable[[Message], bool]]] = {
    "request_vote": _numbers("term", "last_log_index", "last_log_term"),
    "response_vote": _numbers("term"),
    "append_entries": _is_append,
    "apply_command": _is_command,
    "apply_command_response": _is_response,
    "next_node_idx": _is_answer,
}
