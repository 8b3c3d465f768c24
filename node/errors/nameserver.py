"""Errors of the name server, with their meaning for the caller.

Owns the names, codes and texts; must not know which code raises them. No error here stops the node:
the data path does not wait for the name server.
"""

from node.errors.common import NodeError
from store.errors import Outcome


class NameServerSettingsError(NodeError):
    """The settings are refused; the name server does not start."""

    code, status = "nameserver.settings", "INVALID_ARGUMENT"

    def __init__(self, setting: str, value: str, remedy: str) -> None:
        super().__init__(setting, value, remedy)
        self.setting, self.value, self.remedy = setting, value, remedy

    def __str__(self) -> str:
        return f"name server: {self.setting} is {self.value}; {self.remedy}"


class PysyncobjVersionError(NodeError):
    """The installed version of PySyncObj is not the one whose faults were studied."""

    code, status = "nameserver.library_version", "FAILED_PRECONDITION"

    def __init__(self, wanted: str, version: str) -> None:
        super().__init__(wanted, version)
        self.wanted, self.version = wanted, version

    def __str__(self) -> str:
        return (
            f"PySyncObj {self.version} is installed, {self.wanted} is needed; install that version"
        )


class FilesDamagedError(NodeError):
    """The replica's files are damaged or incomplete: a vote may be lost, so it does not start."""

    code, status = "nameserver.files_damaged", "DATA_LOSS"

    def __init__(self, path: str, damage: str) -> None:
        super().__init__(path, damage)
        self.path, self.damage = path, damage

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.damage}; stop this node, move the directory away and start again: "
            f"the other replicas fill a new one, as long as a majority beside it has its files; "
            f"docs/operations.md has the way when fewer have"
        )


class TwoHistoriesError(FilesDamagedError):
    """A leader contradicts an entry that is committed here: two histories were acked. No entry was
    cut, and this replica takes no further part."""

    code = "nameserver.two_histories"

    def __init__(self, path: str, index: int, committed_index: int) -> None:
        NodeError.__init__(self, path, index, committed_index)
        self.path, self.index, self.committed_index = path, index, committed_index

    def __str__(self) -> str:
        return (
            f"{self.path}: a leader contradicts entry {self.index}, and {self.committed_index} is "
            f"committed here; keep this directory, stop all replicas and choose whose history "
            f"stays (operations.md, 'A replica of the name server without memory')"
        )


class ReplicaFailedError(NodeError):
    """This replica of the name server has stopped because of a fault. Restart the node."""

    code, status = "nameserver.failed", "UNAVAILABLE"
    outcome = Outcome.UNKNOWN

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"this replica of the name server has stopped ({self.cause}); ask another node"


class NameServerOffError(NodeError):
    """The asked node has no replica of the name server, or one that is not up yet. Ask another
    node."""

    code, status = "nameserver.off", "FAILED_PRECONDITION"

    def __str__(self) -> str:
        return (
            "this node has no replica of the name server; ask another node, or set "
            "nameserver_listen and restart it"
        )


class UnprovenReportError(NodeError):
    """A report about a broker does not prove that its sender holds the secret of the cluster, or
    its proof is too old or was used before. The directory is unchanged."""

    code, status = "nameserver.unproven", "PERMISSION_DENIED"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"a report {self.problem}; give all nodes of the cluster, and name servers that run "
            f"alone, the same secret_file and cluster_id"
        )


class NotVouchedError(NodeError):
    """This process has no reason to believe a report about a broker. The directory is unchanged."""

    code, status = "nameserver.not_vouched", "PERMISSION_DENIED"

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        return f"a report {self.problem}; {self.remedy}"


class DirectoryRefusedError(NodeError):
    """The directory refused a change because of a limit or an invalid value, and is unchanged."""

    code, status = "nameserver.refused", "FAILED_PRECONDITION"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"the name server refused it ({self.reason}): {self.detail}; correct the request"


class ValueChangedError(NodeError):
    """The value is not the expected one, so it was not changed. Read it again, then decide."""

    code, status = "nameserver.changed", "ABORTED"

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"{self.key} has another value by now; read it and decide again"


class ValueNotFoundError(NodeError):
    """The namespace has no such key."""

    code, status = "nameserver.value_not_found", "NOT_FOUND"

    def __init__(self, namespace: str, key: str) -> None:
        super().__init__(namespace, key)
        self.namespace, self.key = namespace, key

    def __str__(self) -> str:
        return f"namespace {self.namespace} has no key {self.key}; list what it has"


class NoQuorumError(NodeError):
    """No leader took the command in time. The command had no effect; appends go on without the name
    server."""

    code, retryable, status = "nameserver.no_quorum", True, "UNAVAILABLE"
    retry_after_ms = 500

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"the name server had no leader for {self.timeout_ms} ms; start its other replicas, "
            f"or try again"
        )


class ChangeUnknownError(NodeError):
    """The caller cannot know whether the command was applied. Read the directory, then decide."""

    code, retryable, status = "nameserver.outcome_unknown", True, "DEADLINE_EXCEEDED"
    outcome = Outcome.UNKNOWN

    def __init__(self, key: str, timeout_ms: int) -> None:
        super().__init__(key, timeout_ms)
        self.key, self.timeout_ms = key, timeout_ms

    def __str__(self) -> str:
        return (
            f"command {self.key} was sent and not confirmed within {self.timeout_ms} ms; the same "
            f"command with the same id may be sent again"
        )
