"""One node of a replicated PySyncObj dictionary, which is also the client: it is a library.

Owns the dictionary and the load that runs inside of this process on request. Started by
`bench.peers.pysyncobj_dict` with its control port, its address, its directory and the others'.
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.batteries import ReplDict

from bench.peers import remote
from bench.peers.load_driver import drive
from bench.peers.peer import PeerFailedError, PeerLoad

_ACK_DEADLINE_S = 30.0


class _Node:
    def __init__(self, address: str, directory: str, others: Sequence[str]) -> None:
        name = address.replace(":", "-")
        self._dict = ReplDict()
        self._cluster = SyncObj(
            address,
            list(others),
            conf=SyncObjConf(
                journalFile=os.path.join(directory, f"{name}.journal"),
                fullDumpFile=os.path.join(directory, f"{name}.dump"),
                connectionRetryTime=0.2,
                # With the defaults (0.4 to 1.4 s) nodes that share two cores depose their leader
                # whenever it is busy with a megabyte.
                raftMinTimeout=1.5,
                raftMaxTimeout=3.0,
                connectionTimeout=5.0,
                # A command would otherwise wait for the next tick, and then for the next heartbeat.
                autoTickPeriod=0.001,
                appendEntriesUseBatch=False,
                appendEntriesBatchSizeBytes=1 << 20,
                sendBufferSize=1 << 20,
                recvBufferSize=1 << 20,
            ),
            consumers=[self._dict],
        )
        # Different from the numbers of an earlier run of this node: a key is a message.
        self._numbers = itertools.count(time.time_ns())

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request.pop("op"):
            case "status":
                leader = self._cluster._getLeader()  # Its status has it too, at a higher price.
                is_ready = self._cluster.isReady() and leader is not None
                return {"is_ready": is_ready, "leader": str(leader) if leader else None}
            case "produce":
                found = asdict(await drive(self._send, PeerLoad(**request)))
                return {**found, "began_s": list(found["began_s"]), "took_s": list(found["took_s"])}
            case "consume":
                return self._consume()
            case other:
                raise AssertionError(f"there is no {other}")

    async def _send(self, bodies: Sequence[bytes], topic: int) -> None:
        """Send one command: of one value, or of all values of a batch."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish(error: int) -> None:
            if done.done():
                return
            if error:
                done.set_exception(PeerFailedError(f"PySyncObj failed with {error}"))
            else:
                done.set_result(None)

        def on_applied(_: object, error: int) -> None:
            loop.call_soon_threadsafe(finish, error)

        keys = ["%05d/%020d" % (topic, next(self._numbers)) for _ in bodies]  # noqa: UP031
        if len(bodies) == 1:
            self._dict.set(keys[0], bodies[0], callback=on_applied)
        else:
            self._dict.update(dict(zip(keys, bodies, strict=True)), callback=on_applied)
        async with asyncio.timeout(_ACK_DEADLINE_S):
            await done

    def _consume(self) -> dict[str, Any]:
        """Read every value of the first topic, in order of their keys."""
        began_s = time.monotonic()
        found = sorted(item for item in self._dict.items() if item[0].startswith("00000/"))
        size_bytes = sum(len(value) for _, value in found)
        took_s = time.monotonic() - began_s
        return {"message_count": len(found), "size_bytes": size_bytes, "seconds": took_s}


def main(control_port: str, address: str, directory: str, *others: str) -> None:
    """Run until the process is ended."""
    asyncio.run(remote.serve(int(control_port), _Node(address, directory, others).answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
