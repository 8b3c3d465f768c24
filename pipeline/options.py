"""The options of the source and the sink: names, defaults, and checks.

Owns the way from Spark's text options to values; must not know the cluster or Spark. An unknown
option is an error: a misspelt one would otherwise be ignored silently.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, overload

from pipeline.errors import OptionError
from pipeline.schema import COLUMNS, UnknownColumnError, parse_columns
from quorumlog.cluster.tls import NO_TLS, ClientTls
from quorumlog.errors import InvalidRequestError
from quorumlog.foreign_json import read_json
from quorumlog.records.options import END, FIRST, parse_position

_ALIASES: Final = {"earliest": FIRST, "latest": END}
"""What Spark's other sources call the first and the end of a queue."""
RECORDS_PER_PARTITION_MAX: Final = 1_000_000
TIMEOUT_MS: Final = 60_000
TLS: Final = ("tlsCaFile", "tlsCertificateFile", "tlsKeyFile")
"""In the order of ClientTls."""
TOKEN_FILE: Final = "tokenFile"
_COMMON: Final = ("servers", "clusterId", "timeoutMs", *TLS, TOKEN_FILE)
_SOURCE: Final = (
    *_COMMON,
    "topic",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerTrigger",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "failOnBodyError",
    "readFrom",
)
_BATCH_ONLY: Final = ("endingOffsets",)
_STREAM_ONLY: Final = ("maxRecordsPerTrigger",)
_SINK: Final = (*_COMMON, "topic", "writeId", "brokerGroup", "checkpointLocation")

Place = str | int
"""A beginning or end in a queue: an offset, or a position as the SDK has it."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Beginnings or ends: one for all queues, or for single queues, else `everywhere`."""

    everywhere: Place
    queues: Mapping[str, Mapping[str, Place]] = field(default_factory=dict)
    """Places by topic and queue: `0`, or `group/0` where there are several broker groups."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Addresses of the cluster, the timeout, and the files of TLS on the machine of a task."""

    servers: str
    cluster_id: str | None = None
    timeout_ms: int = TIMEOUT_MS
    tls: ClientTls = NO_TLS
    token_file: str = ""
    """With the token of a user, on the machine of a task; empty: none."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read."""

    cluster: ClusterAddress
    topics: tuple[str, ...]
    columns: tuple[str, ...] = COLUMNS
    starting: Offsets | None = None
    ending: Offsets | None = None
    records_per_trigger_max: int | None = None
    records_per_partition_max: int = RECORDS_PER_PARTITION_MAX
    fails_on_data_loss: bool = True
    fails_on_body_error: bool = False
    reads_followers: bool = True


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write."""

    cluster: ClusterAddress
    topic: str | None = None
    write_id: str | None = None
    broker_group: str = ""


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of a read of a table. Raises OptionError, also for one of streams."""
    _refuse(options, _STREAM_ONLY, "a batch has no triggers: use it with readStream")
    return source_options(options)


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of a read of a stream. Raises OptionError, also for one of batches."""
    _refuse(options, _BATCH_ONLY, "a stream has no end: read a batch, or trigger availableNow")
    return source_options(options)


def _refuse(options: Mapping[str, str], names: tuple[str, ...], do: str) -> None:
    given = {name.lower() for name in options}
    for name in names:
        if name.lower() in given:
            raise OptionError(f"option {name!r} has no effect here", do)


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Check the options of a read, of a table or of a stream. Raises OptionError."""
    given = GivenOptions(options, _SOURCE, "source")
    topics = tuple(name.strip() for name in given.text("topic", "").split(",") if name.strip())
    if not topics:
        raise OptionError("option 'topic' is missing", "name one topic or several: 'a,b'")
    if len(set(topics)) < len(topics):
        raise OptionError(f"option 'topic' is {','.join(topics)!r}", "name each topic once")
    return SourceOptions(
        cluster=given.cluster(),
        topics=topics,
        columns=given.columns(),
        starting=given.offsets("startingOffsets", topics),
        ending=given.offsets("endingOffsets", topics),
        records_per_trigger_max=given.count("maxRecordsPerTrigger", None),
        records_per_partition_max=given.count("maxRecordsPerPartition", RECORDS_PER_PARTITION_MAX),
        fails_on_data_loss=given.choice("failOnDataLoss", ("true", "false")) == "true",
        fails_on_body_error=given.fails_on_body_error(),
        reads_followers=given.choice("readFrom", ("followers", "leader")) == "followers",
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write. Raises OptionError."""
    given = GivenOptions(options, _SINK, "sink")
    return SinkOptions(
        cluster=given.cluster(),
        topic=given.text("topic", "") or None,
        write_id=given.text("writeId", "") or None,
        broker_group=given.text("brokerGroup", ""),
    )


class GivenOptions:
    """Options as Spark hands them over: names of any case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        """Check the names. Raises OptionError."""
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in known}
        for name in options:
            # Spark adds an option for callers of load(path).
            if name.lower() not in names:
                raise OptionError(
                    f"the {what} has no option {name!r}", f"it has {', '.join(known)}"
                )

    def text(self, name: str, default: str) -> str:
        """Return the text of an option."""
        return self._options.get(name.lower(), default)

    def cluster(self) -> ClusterAddress:
        """Return the cluster. Raises OptionError."""
        servers = self.text("servers", "")
        if not servers:
            raise OptionError("option 'servers' is missing", "name nodes: 'host:port,host:port'")
        timeout_ms = self.count("timeoutMs", TIMEOUT_MS)
        tls = ClientTls(*(self.text(name, "") for name in TLS))
        if bool(tls.certificate) != bool(tls.key):
            certificate, other = TLS[1:]
            raise OptionError(
                f"only one of {certificate!r} and {other!r} is given", "give both or none"
            )
        cluster_id, token_file = self.text("clusterId", "") or None, self.text(TOKEN_FILE, "")
        return ClusterAddress(servers, cluster_id, timeout_ms, tls, token_file)

    def columns(self) -> tuple[str, ...]:
        """Return the columns. Raises OptionError."""
        try:
            return parse_columns(self.text("columns", ""))
        except UnknownColumnError as error:
            do = "leave it out for all of them"
            raise OptionError(f"option 'columns': {error}", do) from error

    def fails_on_body_error(self) -> bool:
        """Whether a body that cannot be unpacked ends the job. Raises OptionError."""
        return self.choice("failOnBodyError", ("false", "true")) == "true"

    @overload
    def count(self, name: str, default: int, least: int = 1) -> int: ...

    @overload
    def count(self, name: str, default: None) -> int | None: ...

    def count(self, name: str, default: int | None, least: int = 1) -> int | None:
        """Return a number of at least `least`. Raises OptionError."""
        text = self.text(name, "")
        if not text:
            return default
        if not re.fullmatch("[0-9]{1,19}", text) or int(text) < least:
            do = f"use a number of {least} or more, of at most 19 digits"
            raise OptionError(f"option {name!r} is {text[:40]!r}", do)
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return the choice; the first one is the default. Raises OptionError."""
        text = self.text(name, choices[0]).lower()
        if text not in choices:
            raise OptionError(f"option {name!r} is {text!r}", f"use one of {', '.join(choices)}")
        return text

    def offsets(self, name: str, topics: tuple[str, ...]) -> Offsets | None:
        """Return the places of queues; None if none are given. Raises OptionError."""
        text = self.text(name, "").strip()
        if not text:
            return None
        if not text.startswith("{"):
            return Offsets(_place(name, text))
        # A queue that is not named begins at the beginning and ends at the end.
        rest = FIRST if name == "startingOffsets" else END
        return Offsets(rest, _by_queue(name, text, topics))


def _by_queue(name: str, text: str, topics: tuple[str, ...]) -> dict[str, dict[str, Place]]:
    do = 'write it as {"topic": {"0": 42, "1": "end"}}'
    try:
        value = read_json(text, is_unique=True)
    except ValueError as error:
        raise OptionError(f"option {name!r} is no JSON: {error}", do) from error
    places: dict[str, dict[str, Place]] = {}
    for topic, queues in value.items():
        if topic not in topics:
            raise OptionError(
                f"option {name!r} names topic {topic!r}, which is not read", "add it to 'topic'"
            )
        if not isinstance(queues, dict):
            raise OptionError(f"option {name!r} has {queues!r} for topic {topic!r}", do)
        places[topic] = {queue: _place(name, place) for queue, place in queues.items()}
    return places


def _place(name: str, value: object) -> Place:
    """Check a place. Raises OptionError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    name_given = str(value).lower()
    text = name_given if name_given in (FIRST, END) else _ALIASES.get(name_given, value)
    try:
        assert not isinstance(text, int | float), "checked by the parser of positions"
        assert not str(text).startswith("-"), "Kafka's source has other meanings of -1 and -2"
        parse_position(str(text))
    except (InvalidRequestError, AssertionError) as error:
        do = "use 'first', 'end', an offset or '@TIME'"
        raise OptionError(f"option {name!r} has {value!r}", do) from error
    return str(text)
