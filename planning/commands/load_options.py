"""The options that describe a load and its hosts, shared by `qlog plan` and `qlog fleet`.

Owns their names, units and defaults, and how they become a `Demand`.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from planning.capacity.demand import Demand, DemandError, HostSize
from planning.commands.quantities import BYTE_RATE, RATE, SIZE, SPAN
from quorumlog.command_errors import CliError, ExitCode

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _option(*names: str, default: Any = None, help: str, **more: Any) -> Any:  # noqa: A002
    if default is not None:  # A default of None is one, too: nothing would be required.
        more |= {"default": default, "show_default": True}
    return click.option(*names, help=help, **more)


_OPTIONS: Final = (
    _option("--rate", type=RATE, required=True, metavar="RATE",
            help="Highest rate that lasts: 50000msg/s, or of bodies 80MB/s."),
    _option("--average", type=RATE, metavar="RATE",
            help="Rate over the time of retention.  [default: the highest]"),
    _option("--size", "body_size_bytes", type=SIZE, required=True, metavar="SIZE",
            help="Size of a body, as it is stored: 1KiB."),
    _option("--topic-size", "topic_size_bytes", type=SIZE, default="32", metavar="SIZE",
            help="Size of a topic's name."),
    _option("--properties-size", "properties_size_bytes", type=SIZE, default="64", metavar="SIZE",
            help="Size of a message's properties, keys and tag included."),
    _option("--keys", "key_count", type=int, default=1,
            help="Keys of a message by which it is found."),
    _option("--batch", "batch_count", type=int, default=1,
            help="Messages of a batch; 1 asks for most."),
    _option("--retention", "retention_s", type=SPAN, default="3d", metavar="TIME",
            help="Time for which messages are kept."),
    _option("--copies", type=int, default=3, help="Nodes of a broker group."),
    _option("--consumers", "consumer_count", type=int, default=1,
            help="Consumer groups that read every message."),
    _option("--zones", type=int, default=1, help="Zones over which the copies are spread."),
    _option("--failures", "host_failures", type=int, default=1,
            help="Hosts that may be away at the same time."),
    _option("--zone-failures", type=int, default=0, help="Zones that may be away at once."),
    _option("--outage", "outage_s", type=SPAN, default="1h", metavar="TIME",
            help="Time for which a node is away before it catches up."),
    _option("--round-trip", type=SPAN, default="1ms", metavar="TIME",
            help="Round trip between two hosts, of two zones if there are several."),
    _option("--utilisation", type=float, default=0.6,
            help="Share of a resource that may be in use at the peak."),
    _option("--read-memory", "read_memory_s", type=SPAN, default="1m", metavar="TIME",
            help="Age of messages that consumers still find in memory."),
    _option("--host-cores", type=int, default=4, help="Cores of a host."),
    _option("--host-memory", "host_memory_size_bytes", type=SIZE, default="16GiB", metavar="SIZE",
            help="Memory of a host."),
    _option("--host-disk", "host_disk_size_bytes", type=SIZE, default="1TiB", metavar="SIZE",
            help="Disk of a host."),
    _option("--host-network", "host_network_bytes_per_s", type=BYTE_RATE, default="1Gbit/s",
            metavar="RATE",
            help="Network of a host, in each direction."),
    _option("--calibration", metavar="FILE",
            help="Figures of such a host, by qlog bench calibrate.  [default: conservative ones]"),
)  # fmt: skip


def load_options(command: _Command) -> _Command:
    """Decorate a command with the options; it takes them as `**load` for `demand_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def demand_of(load: dict[str, Any]) -> Demand:
    """Return the demand of the options. Raises CliError (usage) for one that makes no sense."""
    try:
        return _demand(load)
    except DemandError as error:
        raise usage_error(error) from None
    except ValueError as error:
        raise CliError(
            "the rate makes no sense", str(error), "see qlog plan --help", ExitCode.USAGE
        ) from None


def usage_error(error: DemandError) -> CliError:
    """Return the error of the command line for a demand that makes no sense."""
    flags = {param.name: param.opts[0] for param in load_options(click.Command("")).params}
    flags |= {"peak_msgs_per_s": "--rate", "average_msgs_per_s": "--average"}
    flags |= {"round_trip_ms": "--round-trip"}
    name, _, rest = error.what.removeprefix("the host has ").partition(" ")
    flag = flags.get(name) or flags.get(f"host_{name}")
    what = f"{flag} ({name}) {rest}" if flag else error.what
    return CliError(what, error.why, error.do, ExitCode.USAGE)


def _demand(load: dict[str, Any]) -> Demand:
    """Return the demand: options are named after its fields, those of its host with `host_`."""
    fields = dict(load)
    host = {
        field: fields.pop(f"host_{field}")
        for field in ("cores", "memory_size_bytes", "disk_size_bytes", "network_bytes_per_s")
    }
    peak, average = fields.pop("rate"), fields.pop("average")
    size = fields["body_size_bytes"]
    return Demand(
        peak_msgs_per_s=peak.msgs_per_s(size),
        average_msgs_per_s=(average or peak).msgs_per_s(size),
        round_trip_ms=fields.pop("round_trip") * 1e3,
        host=HostSize(**host),
        **fields,
    )
