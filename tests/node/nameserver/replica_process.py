"""One name server replica as a process: `python -m tests.node.nameserver.replica_process JSON`.

Reads a request in each line of the standard input and writes its answer as a line: so a test can
kill it, stop it and ask it. Ends when the input does.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from node.config.nameserver import NameServerSettings
from node.errors.common import NodeError
from node.nameserver.replica.replicated import NameServer

LIFETIME_SECONDS = 300


async def _answer(server: NameServer, request: dict[str, Any]) -> Any:
    if request["do"] == "status":
        return asdict(server.status())
    if request["do"] == "snapshot":
        return server.snapshot()
    if request["do"] == "compact":
        return server.compact()
    try:
        result = await server.change(
            request["command"], key=request.get("key"), timeout_ms=request["timeout_ms"]
        )
    except NodeError as error:
        return {"error": error.code, "outcome": error.outcome.value}
    return {"is_accepted": result.is_accepted, "reason": result.reason}


async def _serve(server: NameServer, request: dict[str, Any]) -> None:
    answer = {"number": request["number"], "answer": await _answer(server, request)}
    print(json.dumps(answer), flush=True)


async def _main() -> None:
    server = NameServer(NameServerSettings(**json.loads(sys.argv[1])))
    await server.start()
    print(json.dumps({"number": 0, "answer": "started"}), flush=True)
    tasks = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        tasks.add(asyncio.create_task(_serve(server, json.loads(line))))
    await asyncio.gather(*tasks)
    await server.stop()


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(_main(), LIFETIME_SECONDS))
