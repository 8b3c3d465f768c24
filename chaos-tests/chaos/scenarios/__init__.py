"""All scenarios, by what they attack. Importing this package registers them."""

from chaos.scenarios import (
    clients,
    damage,
    delayed,
    disk,
    failpoints,
    master_slave,
    membership,
    network,
    pop,
    power,
    process,
    resources,
    retry,
    transactions,
)

__all__ = [
    "clients",
    "damage",
    "delayed",
    "disk",
    "failpoints",
    "master_slave",
    "membership",
    "network",
    "pop",
    "power",
    "process",
    "resources",
    "retry",
    "transactions",
]
