"""The node itself for tools: what it does, and how it is set.

Owns the documents. Tools parse some of the values without a look, so each is there, and a number.
A setting is changed by a restart of the node and not by a tool.
"""

import heapq
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import date
from functools import partial
from typing import Final, NamedTuple

from node.rocketmq.remoting.calls.json_bodies import data_version, json_answer
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.command import VERSION
from node.rocketmq.remoting.protocol.fields import text_of
from node.runtime.clock import unix_ms
from node.runtime.json_text import dump_json
from quorumlog.pb.admin_pb2 import NodeStatusRequest, NodeStatusResponse
from quorumlog.version import __version__
from store.stats import LatencyStats

_KINDS: Final = {"put": "msgPut", "get": "msgGet"}
"""Counters of the node, and how the names of their totals begin."""
_DAY_TIMES: Final = ("TodayNow", "TodayMorning", "YesterdayMorning")
_SPANS_S: Final = (10, 60, 600)
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
SAMPLE_S: Final = 10
COARSE_S: Final = 600
_COARSE_STEPS: Final = COARSE_S // SAMPLE_S
METER_COUNT_MAX: Final = 1_024
"""Topics, and topics by group, with samples: 200 numbers for each of their one or two counters."""
GOT_COUNT_MAX: Final = 16_384
"""Counters of topics by group."""
_TOPICS_LOOKED_AT_MAX: Final = 16
_PUT_RANGES: Final = (
    *(("<=0ms", 1), ("0~10ms", 10), ("10~50ms", 50), ("50~100ms", 100), ("100~200ms", 200)),
    *(("200~500ms", 500), ("500ms~1s", 1_000), ("1~2s", 2_000), ("2~3s", 3_000), ("3~4s", 4_000)),
    *(("4~5s", 5_000), ("5~10s", 10_000), ("10s~", 1 << 40)),
)
"""RocketMQ's ranges of the time of an append, and their ends in ms. The exporter wants each."""
_NOT_COUNTED: Final = (
    *("pageCacheLockTimeMills", "timerReadBehind", "timerOffsetBehind", "timerCongestNum"),
    *("dispatchMaxBuffer", "dispatchBehindBytes", "getMessageEntireTimeMax"),
    "startAcceptSendRequestTimeStamp",
)
"""Values that a node here does not have."""
_HIDDEN: Final = ("secret", "key", "password")
_Subject = tuple[str, str, int]
"""What is counted: kind, topic or topic@group, and the topic's origin. A topic that is made again
has none of the counts of the deleted one."""
AskStatus = Callable[[NodeStatusRequest], Awaitable[NodeStatusResponse]]
"""Returns the status of the node, as `qlog cluster status` shows it."""


# --- Counters that only grow: one sample every ten seconds for ten minutes, one every ten minutes
# for a day; nothing is kept per message ---


class Window(NamedTuple):
    """Growth of a counter in a span of time."""

    growth: int
    seconds: int

    @property
    def per_s(self) -> float:
        """Growth in a second, 0 without a span."""
        return self.growth / self.seconds if self.seconds else 0.0


NO_WINDOW: Final = Window(0, 0)


class Meter:
    """One counter and its samples."""

    __slots__ = ("_coarse", "_fine", "_read", "_sample_count", "began_s")

    def __init__(self, read: Callable[[], int], began_s: float, first: int = 0) -> None:
        """`began_s` is the Unix time from which on the counter grew beyond `first`."""
        self._read = read
        self._begin(began_s, first)

    def _begin(self, began_s: float, first: int) -> None:
        self.began_s = began_s
        self._fine: deque[int] = deque([first], maxlen=_COARSE_STEPS)
        self._coarse: deque[int] = deque([first], maxlen=_DAY_S // COARSE_S)
        self._sample_count = 0

    def sample(self, now_s: float) -> None:
        """Take a sample: call it every SAMPLE_S."""
        now = self._read()
        if now < self._fine[-1]:
            self._begin(now_s - SAMPLE_S, 0)  # The counter began again.
        self._sample_count += 1
        self._fine.append(now)
        if self._sample_count % _COARSE_STEPS == 0:
            self._coarse.append(now)

    def last(self, seconds: int) -> Window:
        """Return the growth of the last seconds, or since the start if that is later."""
        if seconds <= COARSE_S:
            count = min(seconds // SAMPLE_S, len(self._fine))
            first, step_count = self._fine[-count], count
        else:
            newest = self._sample_count % _COARSE_STEPS + 1  # Steps since the newest of these.
            room = (seconds // SAMPLE_S - newest) // _COARSE_STEPS
            count = min(room + 1, len(self._coarse))
            first, step_count = self._coarse[-count], newest + (count - 1) * _COARSE_STEPS
        return Window(max(0, self._read() - first), step_count * SAMPLE_S)


class Mornings:
    """What a counter was at the last two midnights, in the local time of the node.

    It counts from 0 since the node began, so a midnight before that has 0, and each count of a day
    is one of the days' part in which the node was up."""

    def __init__(self, read: Callable[[], int], now_s: float) -> None:
        self._read = read
        self._day = _day_of(now_s)
        self._today = self._yesterday = 0

    def at(self, now_s: float) -> tuple[int, int]:
        """Return the counter at midnight and at the midnight before. Call it at least every
        SAMPLE_S: it notices midnight when it is called."""
        day = _day_of(now_s)
        if day > self._day:
            now = self._read()
            self._yesterday = self._today if day == self._day + 1 else now
            self._day, self._today = day, now
        return self._today, self._yesterday


def _day_of(unix_s: float) -> int:
    return date(*time.localtime(unix_s)[:3]).toordinal()


class NodeAdmin(Calls):
    """Answers the requests about this node. One per gateway."""

    def __init__(self, shared: Shared, status: AskStatus) -> None:
        super().__init__(shared)
        self._status = status
        self._began_s = self._sampled_s = unix_ms() / 1000
        self._got: dict[str, tuple[int, int]] = {}
        """Origin of the topic and messages that consumers got, by topic@group."""
        self._meters: dict[_Subject, Meter] = {}
        """Of the node, and of its busiest topics and topics by group."""
        self._is_full = False
        """Whether there are more counters than meters: a counter without one may be old."""
        self._mornings: dict[str, Mornings] = {}
        for kind in _KINDS:
            self._meter(kind, "")
            self._mornings[kind] = Mornings(partial(self._count, kind, ""), self._began_s)

    # --- Counters ---

    async def sample(self) -> None:
        """Take a sample of the counters of the busiest topics and groups, and of the node; forget
        those of topics and groups that are gone."""
        busiest: list[tuple[int, str, str]] = []  # A heap: the least busy first.
        was_full, is_full = self._is_full, False
        subjects = [("put", topic) for topic in self._broker.produce.sizes.topics()]
        subjects += [("get", key) for key in self._got]
        async for kind, key in self._context.turn.over(subjects):
            if self._is_counted(kind, key):
                heapq.heappush(busiest, (self._count(kind, key), kind, key))
                if len(busiest) > METER_COUNT_MAX:
                    heapq.heappop(busiest)
                    is_full = True
            elif kind == "put":
                self._broker.produce.sizes.forget(key)
            else:
                self._got.pop(key, None)
        now_s, self._is_full = unix_ms() / 1000, is_full
        names = [(kind, key) for _, kind, key in busiest] + [(kind, "") for kind in _KINDS]
        names += [("put bytes", key) for _, kind, key in busiest if kind == "put"]
        kept = {self._subject(kind, key) for kind, key in names}
        for one in self._meters.keys() - kept:
            del self._meters[one]
        if len(self._got) >= GOT_COUNT_MAX:
            counts = self._got.items()
            self._got = {key: row for key, row in counts if self._subject("get", key) in kept}
        async for kind, key, origin in self._context.turn.over([*kept - self._meters.keys()]):
            # Without room before, it may have counted for long: nothing says since when.
            began_s = now_s if was_full else self._sampled_s
            first = self._count(kind, key) if was_full else 0
            meter = Meter(partial(self._count, kind, key), began_s, first)
            self._meters[kind, key, origin] = meter
        for morning in self._mornings.values():
            morning.at(now_s)
        async for meter in self._context.turn.over([*self._meters.values()]):
            meter.sample(now_s)
        self._sampled_s = now_s

    def add_got(self, topic: str, group: str, count: int) -> None:
        """Count messages that a consumer of a group got, if there is room for its counter."""
        key = f"{topic}@{group}"
        if key not in self._got and not self._is_counted("get", key):
            return
        if key not in self._got and len(self._got) >= GOT_COUNT_MAX:
            self._is_full = True
            return
        self._got[key] = self._context.origin(topic), self._count("get", key) + count

    def _subject(self, kind: str, key: str) -> _Subject:
        topic = key.rpartition("@")[0] if kind == "get" else key
        return kind, key, self._context.origin(topic)

    def _is_counted(self, kind: str, key: str) -> bool:
        topic, _, group = key.rpartition("@") if kind == "get" else (key, "", "")
        state = self._context.state
        is_group = kind != "get" or group in state.groups or group in self._shared.clients.consumers
        return is_group and state.topic(topic) is not None

    def _meter(self, kind: str, key: str) -> Meter:
        """Return the samples of a counter. One without any was 0 when samples were last taken.
        Raises RefusedError where others are busier."""
        subject = self._subject(kind, key)
        meter = self._meters.get(subject)
        if meter is None:
            if key and self._is_full:
                text = (
                    f"{key[:200]} is not counted: this node counts the {METER_COUNT_MAX} busiest "
                    f"topics and groups; use 'qlog topic stats' or 'qlog group progress'"
                )
                raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
            meter = Meter(partial(self._count, kind, key), self._sampled_s)
            self._meters[subject] = meter
        return meter

    def _count(self, kind: str, key: str) -> int:
        if kind == "get":
            if key:
                origin, count = self._got.get(key, (0, 0))
                return count if origin == self._subject(kind, key)[2] else 0
            return self._broker.pulls.records_total + self._broker.pop.receives.delivered_total
        if not key:
            return self._broker.produce.records_total
        sizes = self._broker.produce.sizes.of(key)
        return sizes.record_count if kind == "put" else sizes.size_bytes

    async def stats(self, request: Request) -> Answer:
        """Return a counter in windows of a minute, an hour and a day."""
        ext = request.command.ext
        name, key = text_of(ext, "statsName"), text_of(ext, "statsKey")
        kinds = {
            "TOPIC_PUT_NUMS": ("put", key),
            "TOPIC_PUT_SIZE": ("put bytes", key),
            "GROUP_GET_NUMS": ("get", key),
            "BROKER_PUT_NUMS": ("put", ""),
            "BROKER_GET_NUMS": ("get", ""),
        }
        if name not in kinds or (kinds[name][1] and not self._is_counted(*kinds[name])):
            text = f"The stats <{name[:200]}> not exist"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, text)
        meter, is_own = self._meter(*kinds[name]), self._is_own(request)
        spans = {"statsMinute": _MINUTE_S, "statsHour": _HOUR_S, "statsDay": _DAY_S}
        document = {}
        for field, seconds in spans.items():
            window = meter.last(seconds) if is_own else NO_WINDOW
            document[field] = {"sum": window.growth, "tps": window.per_s, "avgpt": 1.0}
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(meter.began_s))
        since = f"this node has counted since {began}"
        return Answer(body=dump_json(document), remark=since)

    def put_per_s(self, request: Request, topic: str) -> float:
        """Return the messages of a topic that this node took in a second of the last minute; 0
        where it has no samples of it, and for the names of others."""
        meter = self._meters.get(self._subject("put", topic))
        return meter.last(_MINUTE_S).per_s if meter is not None and self._is_own(request) else 0.0

    def _is_own(self, request: Request) -> bool:
        """Whether a request means this node's own name. Tools add up what names answer, and a node
        answers for the names of others as well, but has counted once."""
        return self._shared.number_of(request) == self._shared.own_number

    # --- What the node does ---

    async def runtime(self, request: Request) -> Answer:
        """Return what the node does, in RocketMQ's words; all values are texts."""
        return json_answer(table=self._runtime(is_own=self._is_own(request)))

    def _runtime(self, *, is_own: bool) -> dict[str, str]:
        store, now_s, counts, tps = self._context.store, unix_ms() / 1000, {}, {}
        for kind, total in _KINDS.items():
            values = (self._count(kind, ""), *self._mornings[kind].at(now_s))
            for when, value in zip(_DAY_TIMES, values if is_own else (0, 0, 0), strict=True):
                counts[f"{total}Total{when}"] = str(value)
            meter = self._meter(kind, "")
            windows = [meter.last(seconds) if is_own else NO_WINDOW for seconds in _SPANS_S]
            tps[kind] = " ".join(f"{window.per_s:.1f}" for window in windows)
        put = int(counts["msgPutTotalTodayNow"])
        disk = shutil.disk_usage(self._shared.settings.directory)
        ratio = f"{disk.used / disk.total:.4f}"
        alive_s = int(now_s - self._began_s)
        lo, hi = store.log.min_position, store.log.max_position
        took, size_bytes = store.counters.put_latencies.snapshot(), 0
        if is_own:
            size_bytes = self._broker.produce.size_bytes_total
        capacity = str(self._broker.context.limits.in_flight_count_max)
        queues = {
            f"{kind}ThreadPoolQueue{what}": value
            for kind in ("send", "pull", "litePull", "query", "ack")
            for what, value in (("Size", "0"), ("Capacity", capacity), ("HeadWaitTimeMills", "0"))
        }
        delays = {f"scheduleMessageOffset_{level}": "0,0" for level in range(1, 19)}
        return {
            "brokerVersionDesc": f"quorumlog_{__version__}",
            "brokerVersion": str(VERSION),
            "brokerActive": "true",
            "putTps": tps["put"],
            "getTransferredTps": tps["get"],
            "getTotalTps": tps["get"],
            "getFoundTps": tps["get"],
            "getMissTps": "0.0 0.0 0.0",
            **counts,
            **dict.fromkeys(_NOT_COUNTED, "0"),
            **queues,
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": capacity,
            "earliestMessageTimeStamp": str(self._earliest_unix_ms()),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "commitLogDirCapacity": f"Total : {_size(disk.total)}, Free : {_size(disk.free)}.",
            "commitLogMinOffset": str(lo),
            "commitLogMaxOffset": str(hi),
            "remainHowManyDataToFlush": "0 B",
            "bootTimestamp": str(int(self._began_s * 1000)),
            "runtime": _duration(alive_s),
            "putMessageEntireTimeMax": str(took.max_us // 1000),
            "putMessageTimesTotal": str(put),
            "putMessageFailedTimes": str(store.counters.put_failed_count),
            "putMessageSizeTotal": str(size_bytes),
            "putMessageAverageSize": f"{size_bytes / put if put else 0:.1f}",
            "putMessageDistributeTime": _ranges_of(took),
            "remainTransientStoreBufferNumbs": "2147483647",
            **delays,
        }

    def _earliest_unix_ms(self) -> int:
        """Return when the oldest message of the first topics was stored; now, without one."""
        context, topics = self._context, list(self._context.state.topics)[:_TOPICS_LOOKED_AT_MAX]
        first_offsets = [(topic, context.store.queue_range(topic, 0)[0]) for topic in topics]
        times_ms = [context.stored_ms(topic, 0, offset) for topic, offset in first_offsets]
        return min([unix_ms(), *(one for one in times_ms if one is not None)])

    async def ha_status(self, _request: Request) -> Answer:
        """Return what the leader knows of the copies at other nodes, or how far this copy is. With
        Raft entries of the log are counted, and bytes with a master."""
        status = await self._status(NodeStatusRequest())
        own, leader, last = status.node_id, status.leader_id, status.last_index
        is_leader = leader == own and self._context.driver.is_ready
        places, address = self._shared.places, self._context.address_of(leader)
        rows = [
            {
                "addr": places.address_of(member.address) or member.address,
                "slaveAckOffset": member.match_index,
                "diff": max(0, last - member.match_index),
                "inSync": member.is_connected and member.match_index >= status.commit_index,
                "transferredByteInSecond": 0,
                "transferFromWhere": member.match_index + 1,
            }
            for member in status.members
            if is_leader and member.node_id != own
        ]
        of_copy = {
            "masterAddr": "" if is_leader else places.address_of(address) or address,
            "transferredByteInSecond": 0,
            "maxOffset": last,
            "lastReadTimestamp": 0,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": status.commit_index,
            "activated": not is_leader
            and any(one.is_connected for one in status.members if one.node_id == leader),
        }
        return json_answer(
            master=is_leader,
            masterCommitLogMaxOffset=last if is_leader else status.commit_index,
            inSyncSlaveNums=sum(row["inSync"] is True for row in rows),
            haConnectionInfo=rows,
            haClientRuntimeInfo=of_copy,
        )

    # --- How it is set ---

    async def config(self, _request: Request) -> Answer:
        """Return the settings as lines, without what is secret."""
        lines = [f"brokerName={self._names.all[0]}", "brokerId=0"]
        for name, value in sorted(self._shared.settings.model_dump(mode="json").items()):
            if not any(part in name for part in _HIDDEN):
                lines.append(f"{name}={value}")
        body = "".join(f"{line}\n" for line in lines).encode()
        return Answer(ext={"version": dump_json(data_version()).decode()}, body=body)


def _ranges_of(took: LatencyStats) -> str:
    """Return the appends in each range; a bucket that ends in two of them counts in the later."""
    counts = dict.fromkeys((name for name, _ in _PUT_RANGES), 0)
    for bucket, count in enumerate(took.counts):
        name = next(name for name, hi_ms in _PUT_RANGES if (1 << bucket) <= hi_ms * 1024)
        counts[name] += count
    return "".join(f"[{name}]:{count} " for name, count in counts.items())


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _duration(seconds: int) -> str:
    minutes, rest_s = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {rest_s} seconds ]"
