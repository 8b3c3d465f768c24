"""Addresses of nodes in the form for clients of the protocol.

Owns the scheme of an address; must not know which node is meant. A scheme that does not fit its
address makes some clients unusable (protocol section 7).
"""

import ipaddress
from collections.abc import Iterable

from node.config.types import Address
from quorumlog.pb import rocketmq_pb2 as pb


def endpoints_of(address: str, others: Iterable[str] = ()) -> pb.Endpoints:
    """Return host:port as an endpoint, with `others` for the case that it does not answer.

    The others are given only if all are IPv4 addresses: no client takes several names of hosts.
    """
    parsed = Address.parse(address)
    scheme = _scheme_of(parsed)
    endpoints = pb.Endpoints(
        scheme=scheme, addresses=[pb.Address(host=parsed.host, port=parsed.port)]
    )
    more = [Address.parse(other) for other in others]
    if all(_scheme_of(one) == pb.AddressScheme.IPv4 for one in (parsed, *more)):
        endpoints.addresses.extend(pb.Address(host=one.host, port=one.port) for one in more)
    return endpoints


def _scheme_of(address: Address) -> pb.AddressScheme:
    try:
        version = ipaddress.ip_address(address.host).version
    except ValueError:
        return pb.AddressScheme.DOMAIN_NAME
    return pb.AddressScheme.IPv4 if version == 4 else pb.AddressScheme.IPv6


def check_endpoints(endpoints: pb.Endpoints) -> bool:
    """Whether the addresses that a client was configured with have hosts and valid ports."""
    return all(a.host and 0 < a.port < 65536 for a in endpoints.addresses)
