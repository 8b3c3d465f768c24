"""All scenarios, by what they attack. Importing this package registers them."""

from chaos.scenarios import (
    clients,
    disk,
    master_slave,
    membership,
    network,
    power,
    process,
    resources,
)

__all__ = [
    "clients",
    "disk",
    "master_slave",
    "membership",
    "network",
    "power",
    "process",
    "resources",
]
