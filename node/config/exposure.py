"""The listening ports that a stranger could misuse, and how. docs/threat-model.md has the table.

Owns the rule for the ports that only nodes may use (peer link, HA link, name server): beyond
loopback a dialling process proves that it is a node. And the one for RocketMQ's protocols: beyond
loopback their clients prove themselves, or the settings say that they need not. Must not open a
port or resolve a name: it judges settings only, for `qlog config check` as for a start.
"""

from typing import Final, NamedTuple

from node.config.settings import Settings
from node.config.types import AUTO, Address, is_loopback

PROOF_REQUIRED: Final = "refused"
ANYONE_MAY_BE_A_NODE: Final = "anyone-who-can-dial-may-be-a-node"
"""The values of `unproven_peers`. The second is long, lest an operator sets it by accident."""


class Exposure(NamedTuple):
    """One listening port that a process without a proof can use."""

    setting: str
    address: Address
    who: str
    how: str
    """The harm that `who` can do; the text of the exposure puts it after `who`."""
    remedy: str

    def __str__(self) -> str:
        return f"{self.setting} {self.address}: {self.who} {self.how}; {self.remedy}"


def is_peer_port_open(settings: Settings) -> bool:
    """Whether any process that can dial the peer port may speak as a node: peers prove their
    identity by the secret, or by certificates of the one CA."""
    has_tls = settings.tls_certificate_file is not None and settings.tls_ca_file is not None
    has_proof = settings.secret_file is not None or has_tls
    return not is_loopback(settings.peer_listen.host) and not has_proof


def has_client_proof(settings: Settings) -> bool:
    """Whether clients prove themselves: as users, or by certificates."""
    return settings.users == "on" or settings.tls_client_auth


def serves_rocketmq(settings: Settings, address: Address) -> bool:
    """Whether RocketMQ's protocol, gRPC or remoting, is served at one of the node's addresses."""
    if settings.rocketmq != AUTO:
        return settings.rocketmq == "on"
    return is_loopback(address.host) or has_client_proof(settings)


def exposures(settings: Settings) -> list[Exposure]:
    """Return every port that a stranger could misuse, the worst first."""
    seen = " in clear text" if settings.tls_certificate_file is None else ""
    client, framed = (
        _port(
            "listen",
            settings.listen,
            f"may read, append and administer{seen}: there are no users",
            "keep it in a network you trust, or set users = on or tls_client_auth",
        ),
        _port(
            "listen_framed",
            settings.framed_listen,
            f"may read, append and commit offsets{seen}: there are no users",
            "keep it in a network you trust, set users = on or tls_client_auth, or listen_framed = "
            "off",
        ),
    )
    http = _port(
        "http_listen",
        settings.http_listen,
        "may read metrics and status (names, addresses, counts), and change nothing",
        "keep it in a network you trust, or listen on 127.0.0.1",
    )
    console = _port(
        "console_listen",
        settings.console_address,
        "may read every message"
        + (", send some and move groups" if settings.console_mode == "full" else ""),
        "put it behind something that asks for a password, or set console = off",
    )
    clients = () if has_client_proof(settings) else (client, framed)
    ports = (_peer_port(settings), *clients, open_rocketmq(settings), http, console)
    return [one for one in ports if one is not None]


def _port(setting: str, address: Address | None, how: str, remedy: str) -> Exposure | None:
    if address is None or is_loopback(address.host):
        return None
    return Exposure(setting, address, "any caller that can dial it", how, remedy)


def _peer_port(settings: Settings) -> Exposure | None:
    address = settings.peer_listen
    if is_peer_port_open(settings):
        return Exposure(
            "peer_listen",
            address,
            "any caller that can dial it",
            "may speak as a node: forge acks and votes, read all messages, stop the cluster",
            "set secret_file, or tls_certificate_file, tls_key_file and tls_ca_file",
        )
    is_by_certificate = settings.secret_file is None and not is_loopback(address.host)
    if is_by_certificate and settings.tls_client_auth:
        return Exposure(
            "peer_listen",
            address,
            "a client with a certificate of tls_ca_file",
            "may speak as a node, since the same CA signs both",
            "set secret_file, too, which clients do not have",
        )
    return None


def open_rocketmq(settings: Settings) -> Exposure | None:
    """Return the port at which strangers may speak a protocol of RocketMQ, the worst one."""
    if settings.rocketmq != "on" or has_client_proof(settings):
        return None
    own = (settings.rocketmq_listen, settings.rocketmq_nameserver_listen)
    ports = (*own, settings.listen, settings.framed_listen)
    address = next((one for one in ports if one and not is_loopback(one.host)), None)
    if address is None:
        return None
    takes_clear_text = address in own and settings.rocketmq_tls != "required"
    how = "read, append and administer" if address in own else "read, append and move offsets"
    seen = " in clear text" if settings.tls_certificate_file is None or takes_clear_text else ""
    return Exposure(
        "rocketmq",
        address,
        "any client of RocketMQ that can dial it",
        f"may {how}{seen}: there are no users",
        "set users = on or tls_client_auth, or keep it in a network you trust",
    )
