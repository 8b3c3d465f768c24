"""Errors of the name server, with their meaning for the caller.

Owns the names, codes and texts; must not know which code raises them. No error here stops the node:
the data path does not wait for the name server.
"""

from node.errors.common import NodeError
from store.errors import Outcome


class NameServerSettingsError(NodeError):
    """The settings are refused; the name server does not start."""

    code, status = "nameserver.settings", "INVALID_ARGUMENT"
    text = "name server: {setting} is {value}; {remedy}"
    setting: str
    value: str
    remedy: str


class PysyncobjVersionError(NodeError):
    """The installed version of PySyncObj is not the one whose faults were studied."""

    code, status = "nameserver.library_version", "FAILED_PRECONDITION"
    text = "PySyncObj {version} is installed, {wanted} is needed; install that version"
    wanted: str
    version: str


class FilesDamagedError(NodeError):
    """The replica's files are damaged or incomplete: a vote may be lost, so it does not start."""

    code, status = "nameserver.files_damaged", "DATA_LOSS"
    text = (
        "{path}: {damage}; stop this node, move the directory away and start again: the other "
        "replicas fill a new one, as long as a majority beside it has its files; "
        "docs/operations.md has the way when fewer have"
    )
    path: str
    damage: str


class TwoHistoriesError(FilesDamagedError):
    """A leader contradicts an entry that is committed here: two histories were acked. No entry was
    cut, and this replica takes no further part."""

    code = "nameserver.two_histories"
    text = (
        "{path}: a leader contradicts entry {index}, and {committed_index} is committed here; keep "
        "this directory, stop all replicas and choose whose history stays (operations.md, 'A "
        "replica of the name server without memory')"
    )

    def __init__(self, path: str, index: int, committed_index: int) -> None:
        NodeError.__init__(self, path, index, committed_index)
        self.path, self.index, self.committed_index = path, index, committed_index


class ReplicaFailedError(NodeError):
    """This replica of the name server has stopped because of a fault. Restart the node."""

    code, status = "nameserver.failed", "UNAVAILABLE"
    outcome = Outcome.UNKNOWN
    text = "this replica of the name server has stopped ({cause}); ask another node"
    cause: str


class NameServerOffError(NodeError):
    """The asked node has no replica of the name server, or one that is not up yet. Ask another
    node."""

    code, status = "nameserver.off", "FAILED_PRECONDITION"
    text = (
        "this node has no replica of the name server; ask another node, or set nameserver_listen "
        "and restart it"
    )


class UnprovenReportError(NodeError):
    """A report about a broker does not prove that its sender holds the secret of the cluster, or
    its proof is too old or was used before. The directory is unchanged."""

    code, status = "nameserver.unproven", "PERMISSION_DENIED"
    text = (
        "a report {problem}; give all nodes of the cluster, and name servers that run alone, the "
        "same secret_file and cluster_id"
    )
    problem: str


class NotVouchedError(NodeError):
    """This process has no reason to believe a report about a broker. The directory is unchanged."""

    code, status = "nameserver.not_vouched", "PERMISSION_DENIED"
    text = "a report {problem}; {remedy}"
    problem: str
    remedy: str


class DirectoryRefusedError(NodeError):
    """The directory refused a change because of a limit or an invalid value, and is unchanged."""

    code, status = "nameserver.refused", "FAILED_PRECONDITION"
    text = "the name server refused it ({reason}): {detail}; correct the request"
    reason: str
    detail: str


class ValueChangedError(NodeError):
    """The value is not the expected one, so it was not changed. Read it again, then decide."""

    code, status = "nameserver.changed", "ABORTED"
    text = "{key} has another value by now; read it and decide again"
    key: str


class ValueNotFoundError(NodeError):
    """The namespace has no such key."""

    code, status = "nameserver.value_not_found", "NOT_FOUND"
    text = "namespace {namespace} has no key {key}; list what it has"
    namespace: str
    key: str


class NoQuorumError(NodeError):
    """No leader took the command in time. The command had no effect; appends go on without the name
    server."""

    code, retryable, status = "nameserver.no_quorum", True, "UNAVAILABLE"
    retry_after_ms = 500
    text = (
        "the name server had no leader for {timeout_ms} ms; start its other replicas, or try again"
    )
    timeout_ms: int


class ChangeUnknownError(NodeError):
    """The caller cannot know whether the command was applied. Read the directory, then decide."""

    code, retryable, status = "nameserver.outcome_unknown", True, "DEADLINE_EXCEEDED"
    outcome = Outcome.UNKNOWN
    text = (
        "command {key} was sent and not confirmed within {timeout_ms} ms; the same command with "
        "the same id may be sent again"
    )
    key: str
    timeout_ms: int
