"""Settings of a name server replica: its address, the addresses of all replicas, the password.

Owns the rule that a replica without a password uses loopback addresses only: any process that can
talk to a replica can change the directory. Must not know how the settings were read.
"""

import ipaddress
from dataclasses import dataclass
from typing import Final

from node.errors.nameserver import NameServerSettingsError

PASSWORD_SIZE_CHARS_MIN: Final = 16
MEMBER_COUNT_MAX: Final = 9
"""More replicas would make every change slower and the directory no safer."""


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """The settings of one replica."""

    address: str
    """`address:port` of this replica, an IP literal: a name would make any host that it resolves to
    a member."""
    members: tuple[str, ...]
    """The addresses of all replicas, this one included; the same on each replica."""
    directory: str
    """The directory of this replica alone."""
    password: str | None = None
    """The password that turns encryption on; None allows loopback addresses only."""

    def check(self) -> None:
        """Raise NameServerSettingsError for settings with which a replica must not start."""
        if self.address not in self.members:
            raise NameServerSettingsError(
                "members", ", ".join(self.members), f"add this replica, {self.address}"
            )
        if len(set(self.members)) != len(self.members) or len(self.members) > MEMBER_COUNT_MAX:
            raise NameServerSettingsError(
                "members", ", ".join(self.members), f"name at most {MEMBER_COUNT_MAX}, each once"
            )
        outside = [member for member in self.members if not _is_loopback(member)]
        if self.password is None and outside:
            raise NameServerSettingsError(
                "members",
                outside[0],
                "set a password, the same for all replicas, or use loopback addresses",
            )
        if self.password is not None and len(self.password) < PASSWORD_SIZE_CHARS_MIN:
            raise NameServerSettingsError(
                "secret_file",
                f"of {len(self.password)} characters",
                f"use at least {PASSWORD_SIZE_CHARS_MIN}, best 32 random bytes as text",
            )


def _is_loopback(member: str) -> bool:
    host, _, port = member.rpartition(":")
    try:
        address = ipaddress.ip_address(host)
        is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    except ValueError:
        is_port = False
    if not is_port:
        raise NameServerSettingsError("members", member, "write an IP address, a colon and a port")
    if address.is_unspecified:
        raise NameServerSettingsError("members", member, "name one address, not all of a machine")
    return address.is_loopback
