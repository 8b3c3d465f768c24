"""How a program in Java of a peer is started and given its settings.

Owns the command and the form of a file of properties; must not know any program.
"""

import asyncio
from collections.abc import Mapping, Sequence

from bench.peers.peer import PeerFailedError
from deploy.cache import place

_WORDS_SIZE_MAX = 300


def java_words(
    peer: str, home: str, options: Sequence[str], main: str, arguments: Sequence[str]
) -> list[str]:
    """Return the command that runs a class of a peer; all that it leaves lies below `home`."""
    installed = place(peer)
    path = f"{installed / 'classes'}:{installed / 'lib'}/*"
    # Each start may leave keys and certificates in the temporary directory.
    homes = (f"-Duser.home={home}", f"-Djava.io.tmpdir={home}")
    return ["java", *options, *homes, "-cp", path, main, *arguments]


async def run_java(peer: str, home: str, main: str, arguments: Sequence[str]) -> None:
    """Run a class of a peer to its end. Raises PeerFailedError with its exception."""
    process = await asyncio.create_subprocess_exec(
        *java_words(peer, home, (), main, arguments),
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    if process.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        # An exception comes before its trace.
        words = next((line for line in lines if "Exception" in line), "".join(lines[-1:]))
        raise PeerFailedError(f"{main} ended with {process.returncode}: {words[:_WORDS_SIZE_MAX]}")


def write_properties(path: str, properties: Mapping[str, str]) -> None:
    """Write the settings of a program."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{key}={value}\n" for key, value in properties.items())
