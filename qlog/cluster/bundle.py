"""`qlog debug bundle`: one archive with what a cluster says of a fault, to look at elsewhere.

Owns the list of the parts, the archive, and what of this machine is in it. Secrets are hidden by
the nodes (`Settings`, `Events`); bodies of messages are asked of no node.
"""

import asyncio
import io
import os
import platform
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from qlog.cluster.judgement import Looks
from qlog.cluster.node_rows import is_down
from qlog.command_decorators import Printout, cluster_command
from qlog.output import Row, to_json
from qlog.progress import progress_bars
from quorumlog.command_errors import CliError, ExitCode
from quorumlog.errors import QuorumlogError
from quorumlog.version import __version__

if TYPE_CHECKING:
    from quorumlog.admin.types import NodeStatus
    from quorumlog.client import Client

_TAIL_COUNT: Final = 16
"""The last applied entries of each log whose checksums are in the bundle."""
_DESCRIBED_MAX: Final = 50
"""Groups that are described by queue, those furthest behind."""
_ZSTD, _GZIP = ".tar.zst", ".tar.gz"


@click.group()
def debug() -> None:
    """Collect what helps to find a fault."""


@debug.command()
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))
@cluster_command
async def bundle(client: "Client", file: Path | None) -> Printout:
    """Write one archive with what all nodes say of themselves.

    Of each node: status, settings with their origins, events, the last hour in numbers, the page of
    metrics, the stacks of all threads and tasks, and the checksums of the last entries of its log.
    Of the cluster: what is wrong, topics, groups and their lag. Of this machine: system, Python,
    packages, names of variables. What does not answer is in missing.json with its error.

    Nothing of a secret, and no body of a message, is in it; names of topics, groups, clients and
    hosts are. FILE ends with .tar.zst, or with .tar.gz, which is the default without the extra
    'compression'. Its mode is 600, and one that exists is kept.

    \b
    Keys of -o json:
      file, size_bytes, complete, files, missing
      files: name, size_bytes
      missing: what, error

    \b
    Examples:
      qlog debug bundle
      qlog debug bundle ticket-17.tar.gz -o json | jq '.missing'
      qlog debug bundle --timeout 1m

    Ends with 0 when all nodes answered, and with 1 when something is missing.
    """
    name = time.strftime(f"quorumlog-{client.cluster_id}-%Y%m%dT%H%M%SZ", time.gmtime())
    path = file or Path(f"{name}{_ZSTD if find_spec('zstandard') else _GZIP}")
    if file is None and path.suffix == ".gz":
        click.echo("zstandard is not installed: the bundle is .tar.gz", err=True)
    parts: list[Row] = []
    with _archive(path) as tar:
        missing = await _collect(client, _Writer(tar, name, parts))
    size_bytes = path.stat().st_size
    record = {"file": str(path), "size_bytes": size_bytes, "complete": not missing}
    return Printout(
        record | {"files": parts, "missing": missing},
        omitted=() if missing else ("missing",),
        exit_code=ExitCode.FINDINGS if missing else ExitCode.OK,
    )


class _Writer:
    """Puts parts into an archive below one directory, and lists them."""

    def __init__(self, tar: tarfile.TarFile, name: str, parts: list[Row]) -> None:
        self._tar, self._name, self._parts = tar, name, parts

    def add(self, name: str, value: object) -> None:
        """Add a text as it is, and any other value as JSON."""
        text = value if isinstance(value, str) else to_json(value, indent=1) + "\n"
        data = text.encode("utf-8", "backslashreplace")
        info = tarfile.TarInfo(f"{self._name}/{name}")
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
        self._tar.addfile(info, io.BytesIO(data))
        self._parts.append({"name": name, "size_bytes": len(data)})


@contextmanager
def _archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Yield a new archive that only this user can read; it goes away if it cannot be finished."""
    if not path.name.endswith((_ZSTD, _GZIP)):
        raise CliError(
            f"{path} is no name of a bundle",
            "its end says how it is compressed",
            f"name it {path}{_ZSTD} or {path}{_GZIP}",
            ExitCode.USAGE,
        )
    with _compressor(path) as compressed, tarfile.open(fileobj=compressed, mode="w|") as tar:
        yield tar


@contextmanager
def _compressor(path: Path) -> Iterator[IO[bytes]]:
    if path.name.endswith(_ZSTD):
        import zstandard

        compress: Callable[[IO[bytes]], Any] = zstandard.ZstdCompressor(level=9).stream_writer
    else:
        import gzip

        def compress(file: IO[bytes]) -> Any:
            return gzip.GzipFile("", "wb", fileobj=file)

    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            with compress(file) as compressed:
                yield compressed
        except BaseException:
            path.unlink()
            raise


async def _collect(client: "Client", writer: _Writer) -> list[Row]:
    """Write all parts; return what is missing."""
    missing: list[Row] = []

    async def part(name: str, asking: Awaitable[object]) -> None:
        try:
            writer.add(name, await asking)
        except QuorumlogError as error:
            missing.append({"what": name, "error": str(error)})

    admin = client.admin
    with progress_bars() as show:
        status, findings = await Looks(client).look()
        writer.add("cluster.json", status.to_dict())
        rows = [one._asdict() | {"severity": one.severity.name} for one in findings]
        writer.add("findings.json", rows)
        writer.add("environment.json", _environment())
        await part("topics.json", admin.list_topics(with_system=True))
        await part("groups.json", _groups(client))
        for done, node in enumerate(status.nodes):
            show("nodes", done, len(status.nodes))
            if is_down(node):
                what = f"nodes/{node.node_id or node.address}"
                missing.append({"what": what, "error": node.error})
                continue
            await asyncio.gather(
                *(
                    part(f"nodes/{node.node_id}/{name}", asking)
                    for name, asking in _of(client, node)
                )
            )
        show("nodes", len(status.nodes), len(status.nodes))
    writer.add("missing.json", missing)
    return missing


def _of(client: "Client", node: "NodeStatus") -> list[tuple[str, Awaitable[object]]]:
    """Return the parts of a node: names and answers to come."""
    admin, node_id = client.admin, node.node_id
    return [
        ("settings.json", admin.settings(node_id)),
        ("events.json", admin.events(node_id)),
        ("history.json", admin.history(node_id)),
        ("metrics.txt", admin.metrics(node_id)),
        ("stacks.txt", admin.stacks(node_id)),
        ("tail.json", _tail(client, node)),
    ]


async def _tail(client: "Client", node: "NodeStatus") -> object:
    """Return the checksums of the last entries of a log; of a master-slave node its positions."""
    from quorumlog.errors import ServerError

    try:
        last = await client.admin.chain_digest(node.node_id)
    except ServerError as error:
        if error.code != "node.wrong_mode":
            raise
        return (await client.admin.ha_status(node.node_id)).to_dict()
    lo = max(node.first_index, last.index - _TAIL_COUNT + 1)
    earlier = (client.admin.chain_digest(node.node_id, index) for index in range(lo, last.index))
    return [*await asyncio.gather(*earlier), last]


async def _groups(client: "Client") -> object:
    groups = await client.admin.list_groups()
    behind = sorted(
        (group for group in groups if group.lag_count), key=lambda group: -group.lag_count
    )
    described = []
    for group in behind[:_DESCRIBED_MAX]:
        with suppress(QuorumlogError):  # Deleted meanwhile; the list has it.
            described.append(await client.admin.describe_group(group.group))
    return {"groups": groups, "described": described}


def _environment() -> Row:
    """Return what of this machine may matter. Of variables only the names: values may be secret."""
    return {
        "qlog": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "cpu_count": os.cpu_count(),
        "unix_ms": time.time_ns() // 1_000_000,
        "packages": sorted(f"{one.name} {one.version}" for one in metadata.distributions()),
        "variables": sorted(name for name in os.environ if name.startswith("QUORUMLOG_")),
    }
