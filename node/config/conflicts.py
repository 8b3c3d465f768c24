"""The rules between settings: the conflicts of a set of settings, and what to do about each.

Owns the rules; the type of a setting checks its value alone. All conflicts are reported at once, so
that an operator corrects a file in one go.
"""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from node.config.environment import tls_files
from node.config.exposure import PROOF_REQUIRED, is_peer_port_open, serves_rocketmq
from node.config.settings import PORT_MAX, VIP_PORT_DISTANCE, Settings
from node.config.types import Address
from node.errors.nameserver import NameServerSettingsError
from node.peers.security.proof import SECRET_SIZE_BYTES_MIN
from node.peers.security.tls import TlsFileError, server_context
from node.runtime.private_files import changeable, unusable
from quorumlog.user_files import (
    CERTIFICATE,
    PRIVATE_KEY,
    UserFileError,
    read_pem,
    read_user_file,
)

_PAGE_SIZE_BYTES: Final = 4096
_SECRET_COUNT_MAX: Final = 2
_OF_THE_HOST: Final = frozenset(
    Path("/", name)
    for name in (
        "",
        "bin",
        "boot",
        "dev",
        "etc",
        "home",
        "lib",
        "root",
        "run",
        "sbin",
        "usr",
        "var",
    )
)
_OF_THE_KERNEL: Final = ("/proc", "/sys")
_PEM: Final = {
    "tls_certificate_file": CERTIFICATE,
    "tls_key_file": PRIVATE_KEY,
    "tls_ca_file": CERTIFICATE,
}
_SECRETS: Final = (*("secret_file", "nameserver_secret_file", "tls_key_file", "users_key_file"),)
_FILES: Final = (*_SECRETS, "users_file", "tls_certificate_file", "tls_ca_file")


class Conflict(NamedTuple):
    """Settings that are fine alone and wrong together."""

    keys: tuple[str, ...]
    what: str
    suggestion: str


def conflicts(settings: Settings) -> Iterator[Conflict]:
    """Yield all conflicts between settings."""
    yield from _path_conflicts(settings)
    yield from _size_conflicts(settings)
    yield from _member_conflicts(settings)
    yield from _address_conflicts(settings)
    yield from _security_conflicts(settings)
    yield from _rocketmq_conflicts(settings)
    yield from _nameserver_conflicts(settings)
    yield from _replication_conflicts(settings)
    heartbeat_ms, patience_ms = settings.heartbeat_ms, settings.election_min_ms
    if 3 * heartbeat_ms > patience_ms:
        times = f"{heartbeat_ms} ms between heartbeats against {patience_ms} ms of patience"
        what, do = f"{times}: two lost ones end a term", f"{3 * heartbeat_ms} or more"
        yield Conflict(("heartbeat_ms", "election_min_ms"), what, f"use election_min_ms = {do}")


def check_files(settings: Settings, *names: str) -> None:
    """Look at the files of security settings as at a start. Raises UserFileError for the first
    that cannot be used."""
    for conflict in _security_conflicts(settings):
        for name in set(conflict.keys).intersection(names):
            raise UserFileError(f"{name}: {conflict.what}", conflict.suggestion)


def _path_conflicts(settings: Settings) -> Iterator[Conflict]:
    for name, path in settings:
        if isinstance(path, Path) and not str(path).isprintable():
            what = "the path has a line break or another character that no line can show"
            yield Conflict((name,), what, "use letters, digits and '._-'")
    # A path with `..` and one through a link are looked at where they lead.
    directory = settings.directory.absolute()
    for path in {directory, directory.resolve()}:
        if path in _OF_THE_HOST or any(path.is_relative_to(top) for top in _OF_THE_KERNEL):
            what = f"{path} belongs to the host, and a node owns its whole directory"
            yield Conflict(("directory",), what, "use one of its own, as /var/lib/quorumlog")
            break


def _size_conflicts(settings: Settings) -> Iterator[Conflict]:
    file, batch = settings.file_size_bytes, settings.batch_size_bytes_max
    if file % _PAGE_SIZE_BYTES:
        nearest = (file // _PAGE_SIZE_BYTES + 1) * _PAGE_SIZE_BYTES
        what = f"{file} is not a multiple of {_PAGE_SIZE_BYTES}"
        yield Conflict(("file_size_bytes",), what, f"use {nearest}")
    if file < 2 * batch:
        what = f"a file of {file} bytes cannot hold two batches of {batch}"
        do = f"use file_size_bytes = {2 * batch}, or batch_size_bytes_max = {file // 2}"
        yield Conflict(("file_size_bytes", "batch_size_bytes_max"), what, do)
    if settings.in_flight_size_bytes_max < 2 * batch:
        what = f"less than two batches of {batch} may be in flight"
        do = f"use in_flight_size_bytes_max = {2 * batch} or more"
        yield Conflict(("in_flight_size_bytes_max", "batch_size_bytes_max"), what, do)
    if 0 < settings.retention_size_bytes < 2 * file:
        what = f"only whole files of {file} bytes go, and the newest stays"
        do = f"use retention_size_bytes = {2 * file} or more, or 0"
        yield Conflict(("retention_size_bytes", "file_size_bytes"), what, do)


def _member_conflicts(settings: Settings) -> Iterator[Conflict]:
    own, peers = settings.node_id, settings.peers
    members = set(peers) or {own}
    if peers and own not in peers and not settings.join:
        what = f"this node ({own}) is not among peers {sorted(peers)}"
        yield Conflict(("peers", "node_id"), what, f"add [peers.{own}], or join = true")
    if settings.join and settings.bootstrap:
        what = "a node that joins takes no part in founding"
        yield Conflict(("join", "bootstrap"), what, "remove one of them")
    unknown = sorted(set(settings.bootstrap) - members)
    if unknown:
        what = f"voters {unknown} are not among peers {sorted(peers)}"
        yield Conflict(("bootstrap", "peers"), what, f"add [peers.{unknown[0]}]")
    if settings.preferred_leader and settings.preferred_leader not in members:
        what = f"node {settings.preferred_leader} is not among peers {sorted(peers)}"
        yield Conflict(("preferred_leader", "peers"), what, "name one of them, or 0")
    used: dict[Address, str] = {}
    for node, peer in sorted(peers.items()):
        for name, address in (("address", peer.address), ("peer_address", peer.peer_address)):
            key = f"peers.{node}.{name}"
            if address.is_wildcard or not address.port:
                do = "name the host and the port that others dial"
                yield Conflict((key,), f"{address} cannot be dialled", do)
            elif address in used:
                what = f"{address} is also {used[address]}"
                yield Conflict((key,), what, "give each its own")
            used[address] = key


def _address_conflicts(settings: Settings) -> Iterator[Conflict]:
    own = settings.peers.get(settings.node_id)
    if settings.listen.is_wildcard and settings.advertise is None and own is None:
        what = f"clients cannot be told to dial {settings.listen}"
        yield Conflict(("listen", "advertise"), what, "set advertise = HOST:PORT")
    for name in ("advertise", "rocketmq_advertise", "advertise_framed"):
        advertised: Address | None = getattr(settings, name)
        if advertised is not None and advertised.is_wildcard:
            what = f"{advertised} cannot be dialled"
            yield Conflict((name,), what, "name a host")
    last = settings.remoting_listen(settings.rocketmq_name_count - 1)
    if last is not None and last.port > PORT_MAX:
        what = f"the last broker name would have port {last.port}"
        yield Conflict(("rocketmq_listen",), what, f"the highest is {PORT_MAX}")
    used: dict[Address, str] = {}
    listening = {
        "listen": settings.listen,
        "peer_listen": settings.peer_listen,
        "http_listen": settings.http_listen,
        "console_listen": settings.console_address,
        "nameserver_listen": settings.nameserver_listen,
        "listen_framed": settings.framed_listen,
        "rocketmq_nameserver_listen": settings.rocketmq_nameserver_listen,
    }
    remoting = []
    for number in range(settings.rocketmq_name_count):
        address = settings.remoting_listen(number)
        if address is not None and address.port:
            second = Address(address.host, max(1, address.port - VIP_PORT_DISTANCE))
            remoting += [("rocketmq_listen", address), ("rocketmq_listen", second)]
    for name, address in (*listening.items(), *remoting):
        if address is None or not address.port:
            continue
        if address in used:
            what = f"{address} is also {used[address]}"
            yield Conflict((name, used[address]), what, "give each its own port")
        used[address] = name


def _security_conflicts(settings: Settings) -> Iterator[Conflict]:
    if settings.unproven_peers == PROOF_REQUIRED and is_peer_port_open(settings):
        what = (
            f"any caller that can dial {settings.peer_listen} may speak as a node, and destroy the "
            f"cluster"
        )
        do = (
            "set secret_file (for example 'openssl rand -hex 32', the same on all nodes), or "
            "tls_certificate_file, tls_key_file and tls_ca_file; docs/threat-model.md says more"
        )
        yield Conflict(("peer_listen", "secret_file"), what, do)
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if (certificate is None) != (key is None):
        names = ("tls_certificate_file", "tls_key_file")
        yield Conflict(names, "only one of the two is set", "set both or none")
    if certificate is None and (settings.tls_ca_file or settings.tls_client_auth):
        what = "has no effect without a certificate of this node"
        yield Conflict(("tls_ca_file", "tls_client_auth"), what, "set tls_certificate_file")
    if certificate is None and settings.http_tls:
        what, do = "there is no certificate to show", "set tls_certificate_file and tls_key_file"
        yield Conflict(("http_tls",), what, do)
    if settings.tls_client_auth and settings.tls_ca_file is None:
        what = "certificates of clients cannot be checked"
        yield Conflict(("tls_client_auth",), what, "set tls_ca_file")
    if settings.tls_client_auth and settings.rocketmq_tls != "required":
        what = "clients without TLS show no certificate"
        names = ("rocketmq_tls", "tls_client_auth")
        yield Conflict(names, what, "set rocketmq_tls = required")
    faults = {name: fault for name in _FILES if (fault := _fault(settings, name)) is not None}
    for name, fault in faults.items():
        yield Conflict((name,), *fault)
    tls = tls_files(settings)
    if tls is not None and faults.keys().isdisjoint(_PEM):
        try:
            server_context(tls)
        except TlsFileError as error:
            yield Conflict((error.setting,), f"{error.path}: {error.reason}", error.remedy)
    if settings.secret_file is not None and "secret_file" not in faults:
        found = settings.secrets()
        if len(found) > _SECRET_COUNT_MAX:
            what = f"the file has {len(found)} lines with secrets, {_SECRET_COUNT_MAX} are allowed"
            yield Conflict(("secret_file",), what, "keep the one that proves, and the other one")
        size_bytes = min(map(len, found))
        if size_bytes < SECRET_SIZE_BYTES_MIN:
            what = f"the secret has {size_bytes} bytes, {SECRET_SIZE_BYTES_MIN} are needed"
            do = "make one, for example with 'openssl rand -hex 32'"
            yield Conflict(("secret_file",), what, do)
    yield from _user_conflicts(settings, faults.keys())


def _user_conflicts(settings: Settings, faults: Collection[str]) -> Iterator[Conflict]:
    if settings.users != "off" and settings.users_file is None:
        what = "without a first user no caller would be one"
        do = "write the file of one with 'qlog user init FILE', and set users_file = FILE"
        yield Conflict(("users", "users_file"), what, do)
    others = settings.peers.keys() - {settings.node_id} or settings.nameserver_servers
    is_alone = not (others or settings.join or len(settings.nameserver_members) > 1)
    if settings.users == "on" and settings.secret_file is None and not is_alone:
        what = "nodes could not tell each other from callers without a user"
        do = "set secret_file (for example 'openssl rand -hex 32', the same on all nodes)"
        yield Conflict(("users", "secret_file"), what, do)
    reads: tuple[tuple[str, Callable[[], object]], ...] = (
        ("users_file", settings.first_user),
        ("users_key_file", settings.users_box),
    )
    for name, read in reads:
        if name not in faults:
            try:
                read()
            except UserFileError as error:
                yield Conflict((name,), error.what, error.do)


def _rocketmq_conflicts(settings: Settings) -> Iterator[Conflict]:
    for name in ("rocketmq_listen", "rocketmq_nameserver_listen"):
        address: Address | None = getattr(settings, name)
        if address is None or serves_rocketmq(settings, address):
            continue
        if settings.rocketmq == "off":
            what, do = "RocketMQ's protocols are off", f"set rocketmq = auto, or {name} = off"
        else:
            what = f"any caller that can dial {address} may read, append and administer"
            do = "set users = on or tls_client_auth, or rocketmq = on in a network you trust"
        yield Conflict((name, "rocketmq"), what, do)


def _fault(settings: Settings, name: str) -> tuple[str, str] | None:
    """Return why the file of a setting is refused, and what to do; None if it is accepted or
    there is none."""
    path: Path | None = getattr(settings, name)
    if path is None:
        return None
    try:
        if name in _PEM:
            read_pem(path, _PEM[name])
        else:
            read_user_file(path)
    except UserFileError as error:
        # A file of another user is known by its owner rather than by the failed read.
        refused = unusable(path) if isinstance(error.__cause__, PermissionError) else None
        return refused or (f"{path}: {error.what}", error.do)
    if name == "users_file":  # It holds a digest. Who can write it chooses the first admin.
        return changeable(path)
    return unusable(path) if name in _SECRETS else None


def _nameserver_conflicts(settings: Settings) -> Iterator[Conflict]:
    if settings.nameserver_listen is None:
        if settings.nameserver_members:
            what = "members without a replica in this node"
            do = "set nameserver_listen to one of them"
            yield Conflict(("nameserver_members", "nameserver_listen"), what, do)
    elif settings.nameserver_servers:
        what, do = "this node has a replica itself", "remove one of them"
        yield Conflict(("nameserver_servers", "nameserver_listen"), what, do)
    elif settings.users == "on" and settings.nameserver_secret_file is None:
        what = "any process of this machine could change the directory without its secret"
        do = "name a file with a password, the same for all replicas of the name server"
        yield Conflict(("nameserver_secret_file", "users"), what, do)
    elif _fault(settings, "nameserver_secret_file") is None:  # Else it is reported already.
        chosen = settings.nameserver()
        assert chosen is not None, "the name server listens"
        try:
            chosen.check()
        except NameServerSettingsError as error:
            name = f"nameserver_{error.setting}"
            yield Conflict((name,), f"is {error.value}", error.remedy)


def _replication_conflicts(settings: Settings) -> Iterator[Conflict]:
    if not settings.is_ha:
        return
    mode, count = settings.replication, max(1, len(settings.peers))
    if settings.copies > count:
        what = f"{settings.copies} copies in a group of {count}"
        yield Conflict(("copies", "peers"), what, f"use 1 to {count}")
    if settings.flush != "sync":
        what = f"an ack means synced with replication = {mode}"
        yield Conflict(("flush", "replication"), what, "use flush = sync")
    for name in ("join", "bootstrap", "preferred_leader"):
        if getattr(settings, name):
            what = f"has no meaning with replication = {mode}"
            yield Conflict((name, "replication"), what, "remove it")
