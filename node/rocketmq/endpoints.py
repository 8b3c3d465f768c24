"""Addresses of nodes as clients of the protocol are told of them.

Owns the scheme of an address; must not know which node is meant. A scheme that does not fit its
address makes some clients unusable (protocol section 7).
"""

import ipaddress

from node.config_types import Address
from quorumlog.pb import rocketmq_pb2 as pb


def endpoints_of(address: str) -> pb.Endpoints:
    """Return host:port as the one address of an endpoint."""
    found = Address.parse(address)
    try:
        version = ipaddress.ip_address(found.host).version
    except ValueError:
        scheme = pb.AddressScheme.DOMAIN_NAME
    else:
        scheme = pb.AddressScheme.IPv4 if version == 4 else pb.AddressScheme.IPv6
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=found.host, port=found.port)])


def check_endpoints(endpoints: pb.Endpoints) -> bool:
    """Say whether what a client was configured with can be addresses at all."""
    return all(a.host and 0 < a.port < 65536 for a in endpoints.addresses)
