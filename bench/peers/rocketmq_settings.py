"""The settings of RocketMQ's brokers in a comparison.

Owns each setting that is not the default, with its reason, and the choice of ports: a broker takes
the port below the one before its own, too, and has no setting for it.
"""

import os
from typing import Final, Literal, NamedTuple

from deploy.local_process import free_ports, is_free

Mode = Literal["dledger", "master_slave"]

NODE_COUNT: Final = 3
_PORT_TRIES_MAX: Final = 100
# The heap of the documented start scripts (8 GiB) would not fit three times; the rest is theirs.
JAVA_OPTIONS: Final = (
    "-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC",
    "-XX:-OmitStackTraceInFastThrow",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)  # fmt: skip


class Ports(NamedTuple):
    """The ports of one broker."""

    listen: int
    ha: int
    dledger: int


def choose_ports() -> list[Ports]:
    """Return free ports for all brokers, with the one that a broker takes beside its own."""
    ports: list[Ports] = []
    for _ in range(_PORT_TRIES_MAX):
        listen, ha, dledger = free_ports(3)
        if is_free(listen - 2):
            ports.append(Ports(listen, ha, dledger))
        if len(ports) == NODE_COUNT:
            return ports
    raise OSError("no free ports with a free one two below")


def broker_properties(
    mode: Mode,
    number: int,
    ports: list[Ports],
    root: str,
    name_server: str,
    topic_count: int,
) -> dict[str, str]:
    """Return the settings of one broker."""
    own = ports[number]
    properties = {
        "brokerClusterName": "bench",
        "brokerName": "bench",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": str(own.listen),
        "haListenPort": str(own.ha),
        "namesrvAddr": name_server,
        # The shortest there is: a broker that missed the name server at its start retries after it.
        "registerNameServerPeriod": "10000",
        "storePathRootDir": root,
        "storePathCommitLog": os.path.join(root, "commitlog"),
        "mappedFileSizeCommitLog": str(256 << 20),
        "sendMessageThreadPoolNums": "16",
        # On a machine this small an append may wait longer than production would allow.
        "waitTimeMillsInSendQueue": "30000",
        "osPageCacheBusyTimeOutMills": "30000",
        "slaveTimeout": "30000",
        "syncFlushTimeout": "30000",
        # A pull may return as many messages as ours does.
        "maxTransferCountOnMessageInMemory": "1000",
        "maxTransferBytesOnMessageInMemory": str(2 << 20),
        "maxTransferCountOnMessageInDisk": "1000",
        "maxTransferBytesOnMessageInDisk": str(2 << 20),
        "diskMaxUsedSpaceRatio": "95",
        "timerWheelEnable": "false",
    }
    if topic_count > 1:
        # A queue's file of 6 MB, ten thousand times, would dominate the measurement.
        properties["mappedFileSizeConsumeQueue"] = str(20 * 2_000)
    if mode == "dledger":
        peers = ";".join(f"n{n}-127.0.0.1:{one.dledger}" for n, one in enumerate(ports))
        return properties | {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "bench",
            "dLegerPeers": peers,
            "dLegerSelfId": f"n{number}",
            "enableBatchPush": "true",
        }
    return properties | {
        "brokerId": str(number),
        "brokerRole": "SYNC_MASTER" if number == 0 else "SLAVE",
        "flushDiskType": "SYNC_FLUSH",
        "totalReplicas": str(NODE_COUNT),
        "inSyncReplicas": "2",
        "minInSyncReplicas": "2",
    }
