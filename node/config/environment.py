"""The inputs of a node from its machine: PEM files, its address in records, file descriptors.

Owns these three values; must not know the components of a node.
"""

import resource
import socket

from node.config.settings import Settings
from node.peers.security.tls import TlsFiles
from store.format import LOOPBACK, Host


def tls_files(settings: Settings) -> TlsFiles | None:
    """Return the PEM files of a node, None if it does without TLS."""
    if settings.tls_certificate_file is None or settings.tls_key_file is None:
        return None
    return TlsFiles(settings.tls_certificate_file, settings.tls_key_file, settings.tls_ca_file)


def store_host(settings: Settings) -> Host:
    """Return the address that goes into records and message ids: IPv4, as records are by default.

    A name is looked up once. A name without an IPv4 address gives the loopback address: then
    message ids of two nodes have the same address, and their positions still tell them apart.
    """
    address = settings.advertised(settings.listen.port)
    try:
        infos = socket.getaddrinfo(address.host, address.port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return LOOPBACK[0], address.port
    return str(infos[0][4][0]), address.port


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors to the system's maximum: each idle client costs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
