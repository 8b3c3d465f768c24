"""The settings of one node: their names, meaning, defaults, ranges and derived values.

Owns the list of settings, and the store's and the Raft core's configuration derived from them. Must
not read settings from files, flags or the environment (`node.config.load` does) nor know the rules
between settings (`node.config.conflicts` does).

The list is short on purpose: a value with one right choice for every cluster is a constant in the
module that uses it.
"""

import codecs
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from node.config.limits import Limits
from node.config.nameserver import NameServerSettings
from node.config.types import (
    AUTO,
    Address,
    AddressAutoOrOff,
    Addresses,
    AddressOrOff,
    AddressText,
    DurationMs,
    NodeNumber,
    NodeNumbers,
    Peers,
    SizeBytes,
    is_loopback,
)
from node.config.users import read_first_user, read_users_key
from node.users.credentials import SecretBox
from quorumlog.pb.users_pb2 import User
from quorumlog.user_files import read_user_file
from raft.config import RaftConfig
from store.config import GIB, MIB, StoreConfig
from store.format import Host

ENVIRONMENT_PREFIX: Final = "QUORUMLOG_"
TICK_MS: Final = 25
FRAMED_PORT_DISTANCE: Final = 1_000
"""From the port of `listen` to that of `listen_framed`: keeps nodes of one machine apart."""
REMOTING_PORT_STEP: Final = 10
"""From the port of one broker name to that of the next."""
VIP_PORT_DISTANCE: Final = 2
"""A port of RocketMQ's brokers has a second one so much lower, which some clients prefer."""
PORT_MAX: Final = 65_535
HTTP_PORT: Final = 9878
CONSOLE_PORT: Final = 9879
_HOUR_MS: Final = 3_600_000
_TEXT: Final = re.compile(rb"[\t\n\r -~]*")
_LEDGER_INDEX_UNITS_PER_PAGE: Final = 128
_LIMITS: Final = Limits()
_STORE: Final = StoreConfig()
"""The owners of most defaults: a setting that is passed on unchanged takes its default from
them."""

SECTIONS: Final = {
    "node_id": "Identity",
    "listen": "Where it is reached",
    "replication": "Replication",
    "flush": "The log",
    "heartbeat_ms": "Consensus",
    "nameserver_listen": "The name server",
    "in_flight_size_bytes_max": "Limits",
    "secret_file": "Security",
    "drain_timeout_ms": "Operation",
}
"""Titles of the reference page, by the first setting below each."""


def _setting(default: Any, text: str, **limits: Any) -> Any:
    return Field(default, description=text, **limits)


class Settings(BaseModel):
    """One node's settings. Immutable; a change needs a restart."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    node_id: NodeNumber = _setting(
        ..., "Number of this node in its cluster. Never used again for another disk."
    )
    cluster_id: str = _setting(
        "quorumlog",
        "Name of the cluster. Nodes and clients of another one are refused.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    broker_group: str = _setting(
        "g0",
        "Name of the broker group whose replica this node holds.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    directory: Path = _setting(..., "Directory of all data. Created if it does not exist.")
    peers: Peers = _setting(
        {},
        "All nodes of the cluster by number, this one included: `[peers.1]` with `address` (client "
        "service) and `peer_address`. As one text: `1=PEER_HOST:PORT/CLIENT_HOST:PORT,2=...`. "
        "Empty: a cluster of this node alone.",
    )
    bootstrap: NodeNumbers = _setting(
        (), "Voters of a new cluster, the same on each of them. Empty: all of `peers`."
    )
    join: bool = _setting(
        False,
        "Wait until `qlog cluster members add` adds this node to an existing cluster, instead of "
        "founding one.",
    )

    listen: AddressText = _setting(
        Address("127.0.0.1", 8081), "Client service (gRPC). Port 0 takes a free one."
    )
    advertise: AddressText | None = _setting(
        None,
        "Address that clients dial. Default: this node's `address` in `peers`, else `listen`.",
    )
    listen_framed: AddressAutoOrOff = _setting(
        AUTO,
        "Client service in frames (docs/framed.md): appends and reads with less work than over "
        "gRPC. Port 0 takes a free one; `off`: none. `auto`: the host of `listen` and its port + "
        "1000, or a free port where that is none.",
    )
    advertise_framed: AddressText | None = _setting(
        None,
        "Address that clients dial for frames. Default: the host at which they reach `listen`, "
        "and the port of `listen_framed`; its host as well if that is another one than in "
        "`listen`.",
    )
    rocketmq: Literal["auto", "on", "off"] = _setting(
        AUTO,
        "RocketMQ's protocols: gRPC at `listen`, remoting at `listen_framed` and the ports below. "
        "`auto`: at a loopback address; beyond it with `users = on` or `tls_client_auth` only. "
        "`on`: at each of them, also for strangers; start and `qlog cluster status` say so.",
    )
    rocketmq_listen: AddressOrOff = _setting(
        None,
        "Brokers for clients of RocketMQ's remoting protocol (docs/rocketmq.md): the port of the "
        "first broker name, usually 10911; each further name has a port 10 higher, and each port a "
        "second one 2 lower for clients with a VIP channel. `off`: `listen_framed` alone serves "
        "them, for clients that name the broker in a request.",
    )
    rocketmq_nameserver_listen: AddressOrOff = _setting(
        None,
        "Name server for clients of RocketMQ's remoting protocol, usually port 9876. `off`: they "
        "may use the ports above as name server, too.",
    )
    rocketmq_advertise: AddressText | None = _setting(
        None,
        "Address of the first broker name that routes tell clients of the remoting protocol. "
        "Default: as `advertise` and `rocketmq_listen`.",
    )
    rocketmq_tls: Literal["required", "permissive"] = _setting(
        "required",
        "At the ports of `rocketmq_listen` and `rocketmq_nameserver_listen`, where this node has a "
        "certificate: `permissive` serves clients without TLS as well, as RocketMQ does, while "
        "they move to it.",
    )
    rocketmq_name_count: int = _setting(
        3,
        "Broker names of this group for clients of the remoting protocol, the same on all nodes. "
        "They share the queues of each topic: another count moves queues to other names, so stop "
        "those clients before it is changed.",
        ge=1,
        le=16,
    )
    rocketmq_unique_ms: DurationMs = _setting(
        0,
        "A send of the remoting protocol with a unique key that came within this time is stored "
        "once: clients repeat a send whose answer was lost. Not for batches, delayed messages and "
        "transactions. 0: each is stored.",
        ge=0,
        le=_HOUR_MS,
    )
    rocketmq_auto_topics: bool = _setting(
        False,
        "Make a topic when a client of the remoting protocol sends to a name that does not exist. "
        "A misspelt name is then a second topic, and no error.",
    )
    peer_listen: AddressText = _setting(
        Address("127.0.0.1", 40911), "Peer link. Port 0 takes a free one."
    )
    http_listen: AddressOrOff = _setting(
        Address("127.0.0.1", HTTP_PORT), "Metrics, liveness, readiness, status. `off`: none."
    )
    http_tls: bool = _setting(
        False,
        "Serve `http_listen` and `console_listen` over TLS, with the certificate of this node. "
        "Their callers show no certificate.",
    )
    console: Literal["auto", "off", "read", "full"] = _setting(
        "auto",
        "Pages for a browser (docs/console.md). `read`: they change nothing. `full`: they send "
        "messages and move groups. `auto`: `read` if `console_listen` is on loopback, else `off`. "
        "With `users = on` they ask for the token of a user, else for nothing.",
    )
    console_listen: AddressAutoOrOff = _setting(
        AUTO,
        "Address of these pages. `auto`: the host of `http_listen`, and port 9879 if that has its "
        "default one, else a free port; where 9879 is taken, there are none.",
    )

    replication: Literal["raft", "sync_master", "async_master", "slave"] = _setting(
        "raft",
        "`raft`: a quorum elects its leader. Others are master-slave mode (docs/guarantees.md). "
        "`sync_master` and `async_master` make this node the first master of a new group, and say "
        "when it acks whenever it is master: synced on `copies` nodes, or on itself. `slave`: it "
        "never begins as master, and keeps the mode of the group if it is promoted.",
    )
    copies: int = _setting(
        2,
        "Master-slave mode: on how many nodes of `peers`, the master one of them, an append is "
        "synced before `sync_master` acks it. Fixed once the group is made.",
        ge=1,
        le=9,
    )

    flush: Literal["sync", "async"] = _setting(
        _STORE.flush,
        "`sync`: a receipt means synced on a quorum. `async`: in the page cache of a quorum.",
    )
    flush_interval_ms: DurationMs = _setting(
        _STORE.flush_interval_ms,
        "With `flush = async`: how often the log is synced.",
        ge=10,
        le=60_000,
    )
    sync_hang_limit_ms: DurationMs = _setting(
        60_000,
        "Time limit of a sync. A sync that exceeds it means that the disk hangs: the process ends "
        "(exit code 74) without acking what waits for the sync. It warns from 5 s on.",
        ge=1_000,
        le=_HOUR_MS,
    )
    file_size_bytes: SizeBytes = _setting(
        _STORE.file_size_bytes,
        "Size of each log file. Fixed once the directory is made.",
        ge=1 << 16,
        le=64 * GIB,
    )
    batch_size_bytes_max: SizeBytes = _setting(
        _STORE.batch_size_bytes_max,
        "Largest batch, its 48 bytes of header included.",
        ge=1 << 12,
        le=4 * MIB,
    )
    preallocate_file_count: int = _setting(
        _STORE.preallocate_file_count,
        "Files made ahead of the log, once its first file is half full.",
        ge=0,
        le=16,
    )
    warm_up: bool = _setting(
        _STORE.warm_up,
        "Write zeros through files made ahead, so that a first sync is as fast as others. Not in "
        "memory.",
    )
    scrub_interval_ms: DurationMs = _setting(
        7 * 24 * _HOUR_MS,
        "Within this time everything in full files is read from the disk again and compared with "
        "its checksums, and file by file with the other nodes. 0: never.",
        ge=0,
        le=366 * 24 * _HOUR_MS,
    )
    retention_ms: DurationMs = _setting(
        _STORE.retention_ms,
        "Time for which messages are kept; whole files are deleted. 0: no limit by age.",
        ge=0,
    )
    retention_size_bytes: SizeBytes = _setting(
        _STORE.retention_size_bytes,
        "Size of log that is kept; whole files are deleted. 0: no limit by size.",
        ge=0,
    )
    delay_ms_max: DurationMs = _setting(
        _LIMITS.delay_ms_max,
        "Maximum delay of a delayed message, the same on all nodes. Files with "
        "messages that are still to be delivered are kept beyond `retention_ms` and "
        "`retention_size_bytes`.",
        ge=7_200_000,
        le=40 * 24 * _HOUR_MS,
    )
    disk_full_ratio: float = _setting(
        _STORE.disk_full_ratio,
        "Use of the disk from which on appends are refused; reads continue.",
        gt=0,
        le=1,
    )
    disk_reserve_bytes: SizeBytes = _setting(
        _STORE.disk_reserve_bytes, "Appends are refused when less than this is free.", ge=0
    )
    delete_when_full: bool = _setting(
        _STORE.delete_when_full,
        "Make room on a disk that is used above 85 %, or has less than `disk_reserve_bytes` free, "
        "by deleting the oldest files before they expire, also if other processes fill the disk. "
        "`false`: every file stays until it expires, and a full disk refuses appends.",
    )

    heartbeat_ms: DurationMs = _setting(
        75, "Interval of a leader's heartbeats.", ge=TICK_MS, le=10_000, multiple_of=TICK_MS
    )
    election_min_ms: DurationMs = _setting(
        500,
        "Time without a leader, this long or up to twice as long, after which a node campaigns. "
        "The same on all nodes.",
        ge=4 * TICK_MS,
        le=60_000,
        multiple_of=TICK_MS,
    )
    preferred_leader: int = _setting(
        0, "The node that should lead when it is healthy and caught up. 0: any node.", ge=0
    )
    follower_lag_count_max: int = _setting(
        1 << 20,
        "The log is kept for a follower at most this many entries behind; one further back gets a "
        "snapshot.",
        ge=1,
    )

    nameserver_listen: AddressOrOff = _setting(
        None,
        "Address of the name server's replica inside this node, for other replicas only: an IP "
        "address and a port that all replicas know. `off`: no replica.",
    )
    nameserver_members: Addresses = _setting(
        (),
        "`nameserver_listen` of all replicas, the same on each of them. Empty: this one alone.",
    )
    nameserver_secret_file: Path | None = _setting(
        None,
        "Holds the password of the replicas, the same for all; it turns encryption on. None: only "
        'loopback addresses are allowed, and no `users = "on"`.',
    )

    nameserver_servers: Addresses = _setting(
        (),
        "For a node without a replica: client services of nodes, or of name servers that run alone,"
        " which have one. Those of another group need the same `secret_file`.",
    )

    in_flight_size_bytes_max: SizeBytes = _setting(
        _LIMITS.in_flight_size_bytes_max,
        "Limit of appends that are not yet committed; above it `busy`.",
        ge=1 << 16,
        le=4 * GIB,
    )
    rpc_count_max: int = _setting(
        16_384,
        "Maximum number of calls served at once, half of them over gRPC; above it "
        "RESOURCE_EXHAUSTED.",
        ge=16,
        le=1_000_000,
    )

    slow_append_ms: DurationMs = _setting(
        500,
        "An append that takes so long at the leader is logged with its stages, at most one line a "
        "second. 0: none is.",
        ge=0,
        le=_HOUR_MS,
    )
    metrics_topics_max: int = _setting(
        200,
        "Topics, and as many groups, that have metrics of their own, the busiest first; all others "
        "are one. 0: none has.",
        ge=0,
        le=10_000,
    )

    secret_file: Path | None = _setting(
        None,
        "Holds the secret that nodes prove to each other, and to the name servers of others, the "
        "same in all groups. A second line is a secret that is accepted, too, while it is renewed. "
        "None: only with `peer_listen` on loopback, with TLS and "
        "`tls_ca_file`, or see `unproven_peers`; groups then do not hear of each other through "
        "`nameserver_servers`.",
    )
    unproven_peers: Literal["refused", "anyone-who-can-dial-may-be-a-node"] = _setting(
        "refused",
        "`refused`: a `peer_listen` beyond loopback needs `secret_file`, or a certificate and "
        "`tls_ca_file`, else the node does not start. The other word opens the port to strangers: "
        "they can then delete acked messages. `qlog config check` still reports the open port.",
    )
    tls_certificate_file: Path | None = _setting(
        None, "Certificate chain of this node (PEM), for clients and peers. None: no TLS."
    )
    tls_key_file: Path | None = _setting(None, "Private key of that certificate (PEM).")
    tls_ca_file: Path | None = _setting(
        None,
        "Certificate of the CA of the peers (PEM). Peers check each other's certificates.",
    )
    tls_client_auth: bool = _setting(
        False, "Demand a certificate signed by `tls_ca_file` from clients, too."
    )

    users: Literal["off", "prepare", "on"] = _setting(
        "off",
        "Whether every call needs a user with the right to it (docs/users.md). `prepare`: only the "
        "calls about users are refused, and what `on` would refuse is noted, so that users and "
        "their clients can be set up before.",
    )
    users_file: Path | None = _setting(
        None,
        "The first user of the cluster, as `qlog user init` writes it. It counts as long as the "
        "cluster never had a user.",
    )
    users_key_file: Path | None = _setting(
        None,
        "Key that seals the secrets of access keys in the log, 64 hexadecimal digits, the "
        "same at all nodes. None: that of the environment, QUORUMLOG_USERS_KEY; without one there "
        "are no access keys.",
    )

    drain_timeout_ms: DurationMs = _setting(
        10_000,
        "How long a stop may take to hand over leadership and finish calls.",
        ge=0,
        le=600_000,
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Lowest level of the lines that are logged."
    )
    log_format: Literal["auto", "console", "json"] = _setting(
        "auto", "`auto`: for people on a terminal, JSON elsewhere."
    )

    # --- Derived values ---

    @property
    def is_ha(self) -> bool:
        """Whether this node belongs to a master-slave group."""
        return self.replication != "raft"

    @property
    def voters(self) -> tuple[int, ...]:
        """The voters of the cluster if it is new; empty for a node that joins."""
        if self.join:
            return ()
        return tuple(sorted(self.bootstrap or self.peers or (self.node_id,)))

    def advertised(self, bound_port: int) -> Address:
        """Return the address that clients dial; `bound_port` is the port that `listen` got."""
        own = self.peers.get(self.node_id)
        chosen = self.advertise or (own.address if own else self.listen)
        return chosen if chosen.port else Address(chosen.host, bound_port)

    @property
    def framed_listen(self) -> Address | None:
        """The address of the framed port; None: there is none."""
        chosen = self.listen_framed
        if not isinstance(chosen, str):
            return chosen
        port = self.listen.port + FRAMED_PORT_DISTANCE if self.listen.port else 0
        return Address(self.listen.host, port if port <= PORT_MAX else 0)

    def framed_advertised(self, bound_port: int) -> str:
        """Return what routes tell of the framed port: host:port, or only a port (":9081") at the
        host at which the client asked. `bound_port` is the port that it got."""
        return self._in_routes(self.advertise_framed, self.framed_listen, bound_port)

    @property
    def console_address(self) -> Address | None:
        """The address of the console; None: there is none."""
        chosen = self.console_listen
        if isinstance(chosen, str):
            http = self.http_listen
            if http is None:
                return None
            chosen = Address(http.host, CONSOLE_PORT if http.port == HTTP_PORT else 0)
        is_on = self.console_mode != "off"
        return chosen if is_on else None

    @property
    def console_mode(self) -> str:
        """What the console may do: off, read or full."""
        if self.console != "auto":
            return self.console
        chosen = self.http_listen if isinstance(self.console_listen, str) else self.console_listen
        return "read" if chosen is not None and is_loopback(chosen.host) else "off"

    def remoting_listen(self, number: int) -> Address | None:
        """Return the address of a broker name of the remoting protocol; None: it has none."""
        first = self.rocketmq_listen
        if first is None or not first.port:
            return first
        return Address(first.host, first.port + number * REMOTING_PORT_STEP)

    def remoting_advertised(self, number: int, bound_port: int) -> str:
        """Return what routes tell of a broker name: host:port, or only a port at the host of the
        client service. `bound_port` is the port that the name got."""
        chosen = self.rocketmq_advertise
        if chosen is not None and chosen.port:
            chosen = Address(chosen.host, chosen.port + number * REMOTING_PORT_STEP)
        return self._in_routes(chosen, self.rocketmq_listen, bound_port)

    def _in_routes(self, chosen: Address | None, listen: Address | None, bound_port: int) -> str:
        if chosen is not None:
            return str(chosen if chosen.port else Address(chosen.host, bound_port))
        is_same = listen is None or listen.is_wildcard or listen.host == self.listen.host
        return str(Address("" if is_same or listen is None else listen.host, bound_port))

    def secrets(self) -> tuple[bytes, ...]:
        """Read the secrets, the one that proves this node first; none without a file. A mark of
        UTF-8 before them and white space around them do not count."""
        if self.secret_file is None:
            return ()
        content = read_user_file(self.secret_file).removeprefix(codecs.BOM_UTF8).strip()
        # A secret of random bytes may have any of them.
        lines = content.splitlines() if _TEXT.fullmatch(content) else ()
        return tuple(filter(None, map(bytes.strip, lines))) or (content,)

    def secret(self) -> bytes:
        """Read the secret that proves this node; empty if there is none."""
        return self.secrets()[0] if self.secret_file else b""

    def first_user(self) -> User | None:
        """Read the first user of the cluster; None: there is no file. Raises UserFileError."""
        return None if self.users_file is None else read_first_user(self.users_file)

    def users_box(self) -> SecretBox | None:
        """Return what seals the secrets of access keys; None: there is no key. Raises
        UserFileError."""
        key = read_users_key(self.users_key_file, os.environ)
        return None if key is None else SecretBox(key)

    def nameserver(self) -> NameServerSettings | None:
        """Return the settings of this node's name server replica; None if there is none."""
        if self.nameserver_listen is None:
            return None
        own, file = str(self.nameserver_listen), self.nameserver_secret_file
        return NameServerSettings(
            address=own,
            members=tuple(map(str, self.nameserver_members)) or (own,),
            directory=str(self.directory / "nameserver"),
            password=None if file is None else file.read_text("utf-8-sig", "replace").strip(),
        )

    def store_config(self, store_host: Host | None = None) -> StoreConfig:
        """Return the store's configuration. A log file's size decides those of derived files."""
        pages = max(1, self.file_size_bytes // (1024 * _LEDGER_INDEX_UNITS_PER_PAGE))
        slot_count = max(1_000, self.file_size_bytes * 5_000_000 // GIB)
        base = StoreConfig() if store_host is None else StoreConfig(store_host=store_host)
        return replace(
            base,
            container="commit_log" if self.is_ha else "ledger",
            file_size_bytes=self.file_size_bytes,
            batch_size_bytes_max=self.batch_size_bytes_max,
            body_size_bytes_max=self.batch_size_bytes_max,
            ledger_index_units_per_file=pages * _LEDGER_INDEX_UNITS_PER_PAGE,
            index_slot_count=slot_count,
            index_entry_count=4 * slot_count,
            flush=self.flush,
            flush_interval_ms=self.flush_interval_ms,
            preallocate_file_count=self.preallocate_file_count,
            warm_up=self.warm_up,
            retention_ms=self.retention_ms,
            retention_size_bytes=self.retention_size_bytes,
            disk_warn_ratio=min(base.disk_warn_ratio, self.disk_full_ratio),
            disk_force_ratio=min(base.disk_force_ratio, self.disk_full_ratio),
            disk_full_ratio=self.disk_full_ratio,
            disk_reserve_bytes=self.disk_reserve_bytes,
            delete_when_full=self.delete_when_full,
        )

    def limits(self) -> Limits:
        """Return the limits of the broker and the replicated state."""
        return replace(
            Limits(),
            in_flight_size_bytes_max=self.in_flight_size_bytes_max,
            delay_ms_max=self.delay_ms_max,
        )

    def raft_config(self) -> RaftConfig:
        """Return the core's configuration; its group is the cluster and the broker group."""
        election = self.election_min_ms // TICK_MS
        return RaftConfig(
            group=f"{self.cluster_id}/{self.broker_group}",
            node_id=self.node_id,
            tick_interval_ms=TICK_MS,
            heartbeat_ticks=self.heartbeat_ms // TICK_MS,
            election_ticks_min=election,
            election_ticks_max=2 * election,
            # The broker's limit counts records only; the core must not be the first to refuse.
            uncommitted_size_bytes_max=self.in_flight_size_bytes_max + 16 * MIB,
            retained_lag_entry_count_max=self.follower_lag_count_max,
            preferred_leader=self.preferred_leader,
        )
