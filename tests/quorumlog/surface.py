"""The public calls of the client, found by reflection, and arguments for them.

Owns what counts as public and which arguments make sense; must not know what calls answer. A class,
or a parameter, that nobody has named here fails the tests: so a new public call is covered before
it is merged.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import quorumlog
from quorumlog import errors, sync, testing
from quorumlog.cluster import nameserver
from quorumlog.consume import raw

PACKAGES: Final = {"": quorumlog, "sync.": sync, "testing.": testing}
"""Modules with exports, by what is put before their names here."""
MORE: Final = {
    "NameServers": nameserver.NameServers,
    "Raw": raw.Raw,
    "sync.Raw": sync.Raw,
    "testing.Cluster": testing.Cluster,
    "testing.SyncCluster": testing.SyncCluster,
    "testing.cluster": testing.cluster,
    "testing.sync_cluster": testing.sync_cluster,
}
"""Public, although no list of exports has them: made by what is exported, or documented."""
_READING: Final = (
    "next_ready",
    "next_message",
    "next_batch_of",
    "fill",
    "batch_ready",
    "take_back",
)
INTERNAL: Final = {
    *(  # They take the task or thread that the iteration knows.
        f"{kind}.{name}" for kind in ("GroupConsumer", "PullConsumer") for name in _READING
    ),
    "Producer.send_entries",  # It takes messages that `outgoing` has checked.
}
"""Methods of exported classes that only the client itself calls, and why they check nothing."""


class Call(NamedTuple):
    """One public call: `owner` is its class, or empty for a function."""

    owner: str
    name: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    function: Any

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


def exports() -> dict[str, Any]:
    """All exported classes and functions, by the name they are called by."""
    exported: dict[str, Any] = dict(MORE)
    for prefix, module in PACKAGES.items():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if not inspect.ismodule(value) and callable(value):
                exported[prefix + name] = value
    return exported


def calls() -> list[Call]:
    """All public calls that take an argument."""
    public_calls = []
    for name, value in sorted(exports().items()):
        if not inspect.isclass(value):
            public_calls.append(_call("", name, value))
            continue
        if issubclass(value, errors.QuorumlogError):
            continue
        for method, function in inspect.getmembers(value, callable):
            is_ours = (getattr(function, "__module__", None) or "").startswith("quorumlog")
            if not method.startswith("_") and is_ours and not inspect.isclass(function):
                public_calls.append(_call(name, method, function))
    return [call for call in public_calls if call.parameters and str(call) not in INTERNAL]


def _call(owner: str, name: str, function: Any) -> Call:
    parameters = {
        parameter.name: parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }
    required = tuple(n for n, p in parameters.items() if p.default is p.empty)
    return Call(owner, name, tuple(parameters), required, function)


SENSIBLE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "action": lambda _env: "Pub",
    "address": lambda _env: "127.0.0.1:1",
    "body": lambda _env: b"body",
    "bodies": lambda _env: [b"one", b"two"],
    "bootstrap": lambda env: env.bootstrap,
    "broker_group": lambda env: env.broker_group,
    "check": lambda _env: lambda _transaction: "unknown",
    "confirm_cluster_id": lambda _env: "none",
    "decision": lambda _env: "commit",
    "files": lambda _env: {},
    "group": lambda _env: "spare",
    "key": lambda _env: "k",
    "local": lambda env: env.local_work,
    "message": lambda env: env.received,
    "message_id": lambda _env: "F" * 32,
    "messages": lambda env: env.received,
    "name": lambda _env: "spare",
    "namespace": lambda _env: "n",
    "node_id": lambda _env: 99,
    "offset": lambda _env: 0,
    "offsets": lambda _env: {("orders", 1): 0},
    "peer_address": lambda _env: "127.0.0.1:2",
    "position": lambda _env: "end",
    "producer_group": lambda _env: "spare",
    "producer_id": lambda _env: 0,
    "queue": lambda _env: quorumlog.Queue("orders", 1),
    "queue_id": lambda _env: 1,
    "record_count": lambda _env: 1,
    "records": lambda _env: b"none",
    "resource": lambda _env: "Topic:spare",
    "rules": lambda _env: [],
    "said": lambda _env: "commit",
    "seconds": lambda _env: 1,
    "sequence": lambda _env: 0,
    "topic": lambda _env: "spare",
    "topics": lambda _env: "spare",
    "transaction_id": lambda _env: 1,
    "unix_ms": lambda _env: 0,
    "user": lambda _env: "spare",
    "value": lambda _env: "leader",
    "what": lambda env: env.received,
}
"""What a parameter of that name gets when another one is at fault, by the environment of a test."""
SPECIAL: Final[Mapping[str, Callable[[Any], Any]]] = {
    "Admin.resend_dead_letters.offsets": lambda _env: [0],
    "sync.Admin.resend_dead_letters.offsets": lambda _env: [0],
    "Decision.of.said": lambda _env: "commit",
    "TransactionalProducer.end.decision": lambda _env: quorumlog.Decision.COMMIT,
    "sync.TransactionalProducer.send.local": lambda _env: lambda _transaction: "rollback",
    "NameServers.put.value": lambda _env: "v",
    "PopConsumer.receive.wait": lambda _env: 0,
    "sync.PopConsumer.receive.wait": lambda _env: 0,
    "testing.Cluster.client.connect_timeout_ms": lambda _env: 1,  # None of its nodes runs.
    "testing.SyncCluster.client.connect_timeout_ms": lambda _env: 1,
    "Admin.drain.undo": lambda _env: True,  # A node that is drained takes no messages of others.
    "sync.Admin.drain.undo": lambda _env: True,
}


def arguments(call: Call, env: Any) -> dict[str, Any]:
    """Arguments that make sense for all parameters that need one."""
    made = {}
    for name in call.required:
        make = SPECIAL.get(f"{call}.{name}") or SENSIBLE[name]
        made[name] = make(env)
    for name in set(call.parameters) - set(made):
        if f"{call}.{name}" in SPECIAL:
            made[name] = SPECIAL[f"{call}.{name}"](env)
    return made
