"""The node itself for tools: what it does, and how it is set.

Owns the documents. Tools parse some of the values without a look, so each is there, and a number.
A setting is changed by a restart of the node and not by a tool.
"""

import shutil
import time
from typing import Final

from node.config.settings import Settings
from node.rocketmq.remoting.calls.json_bodies import json_body
from node.rocketmq.remoting.calls.meters import GOT_COUNT_MAX, METER_COUNT_MAX, Meter
from node.rocketmq.remoting.calls.shared import Calls, Shared
from node.rocketmq.remoting.calls.topic_admin import data_version
from node.rocketmq.remoting.conversation import Request
from node.rocketmq.remoting.protocol.answers import Answer, RefusedError
from node.rocketmq.remoting.protocol.codes import ResponseCode
from node.rocketmq.remoting.protocol.command import VERSION
from node.rocketmq.remoting.protocol.fields import text_of
from node.runtime.clock import unix_ms
from quorumlog.version import __version__
from store.stats import LatencyStats

_SPANS_S: Final = (10, 60, 600)
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_TOPICS_LOOKED_AT_MAX: Final = 16
_PUT_RANGES: Final = (
    *(("<=0ms", 1), ("0~10ms", 10), ("10~50ms", 50), ("50~100ms", 100), ("100~200ms", 200)),
    *(("200~500ms", 500), ("500ms~1s", 1_000), ("1~2s", 2_000), ("2~3s", 3_000), ("3~4s", 4_000)),
    *(("4~5s", 5_000), ("5~10s", 10_000), ("10s~", 1 << 40)),
)
"""RocketMQ's ranges of the time of an append, and their ends in ms. The exporter wants each."""
_NOT_COUNTED: Final = (
    *("msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
    *("msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
    *("pageCacheLockTimeMills", "timerReadBehind", "timerOffsetBehind", "timerCongestNum"),
    *("dispatchMaxBuffer", "dispatchBehindBytes", "getMessageEntireTimeMax"),
    "startAcceptSendRequestTimeStamp",
)
"""Values that a node here does not have."""
_HIDDEN: Final = ("secret", "key", "password")


class NodeAdmin(Calls):
    """Answers the requests about this node. One per gateway."""

    def __init__(self, shared: Shared, settings: Settings) -> None:
        super().__init__(shared)
        self._settings = settings
        self._began_s = time.time()
        self._got: dict[str, int] = {}
        """Messages that consumers got, by topic@group."""
        self._meters: dict[tuple[str, str], Meter] = {}
        """Of the topics and groups that were asked for last."""
        self._meter("put", "")
        self._meter("get", "")

    # --- Counters ---

    def sample(self) -> None:
        """Take a sample of every counter; forget those of topics and groups that are gone."""
        for kind, key in [one for one in self._meters if one[1] and not self._is_counted(*one)]:
            del self._meters[kind, key]
        for meter in self._meters.values():
            meter.sample()
        for key in [key for key in self._got if not self._is_counted("get", key)]:
            del self._got[key]

    def add_got(self, topic: str, group: str, count: int) -> None:
        """Count messages that a consumer of a group got. The oldest counter makes room."""
        key = f"{topic}@{group}"
        if key not in self._got and not self._is_counted("get", key):
            return
        self._got[key] = self._got.get(key, 0) + count
        if len(self._got) > GOT_COUNT_MAX:
            del self._got[next(iter(self._got))]

    def _is_counted(self, kind: str, key: str) -> bool:
        """Whether the topic of a counter exists, and its group."""
        topic, _, group = key.rpartition("@") if kind == "get" else (key, "", "")
        state = self._context.state
        is_group = kind != "get" or group in state.groups or group in self._shared.clients.consumers
        return is_group and state.topic(topic) is not None

    def _meter(self, kind: str, key: str) -> Meter:
        """Return the samples of a counter. The one that was asked for the longest time ago makes
        room."""
        found = self._meters.pop((kind, key), None) or Meter(lambda: self._count(kind, key))
        self._meters[kind, key] = found
        if len(self._meters) > METER_COUNT_MAX:
            del self._meters[next(one for one in self._meters if one[1])]
        return found

    def _count(self, kind: str, key: str) -> int:
        """Return a counter since the start."""
        if kind == "get":
            return self._got.get(key, 0) if key else self._broker.pulls.records_total
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
        meter = self._meter(*kinds[name])
        spans = {"statsMinute": _MINUTE_S, "statsHour": _HOUR_S, "statsDay": _DAY_S}
        document = {}
        for field, seconds in spans.items():
            window = meter.last(seconds)
            document[field] = {"sum": window.growth, "tps": window.per_s, "avgpt": 1.0}
        return Answer(body=json_body(document))

    # --- What the node does ---

    async def runtime(self, request: Request) -> Answer:
        """Return what the node does, in RocketMQ's words; all values are texts."""
        return Answer(body=json_body({"table": self._runtime()}))

    def _runtime(self) -> dict[str, str]:
        store = self._context.store
        put, got = self._count("put", ""), self._count("get", "")
        put_tps, get_tps = (self._three(self._meter(kind, "")) for kind in ("put", "get"))
        disk = shutil.disk_usage(self._settings.directory)
        ratio = f"{disk.used / disk.total:.4f}"
        alive_s = int(time.time() - self._began_s)
        lo, hi = store.log.min_position, store.log.max_position
        took = store.counters.put_latencies.snapshot()
        queues = {
            f"{kind}ThreadPoolQueue{what}": value
            for kind in ("send", "pull", "query", "ack")
            for what, value in (
                ("Size", "0"),
                ("Capacity", str(self._broker.context.limits.in_flight_count_max)),
                ("HeadWaitTimeMills", "0"),
            )
        }
        delays = {f"scheduleMessageOffset_{level}": "0,0" for level in range(1, 19)}
        return {
            "brokerVersionDesc": f"quorumlog_{__version__}",
            "brokerVersion": str(VERSION),
            "brokerActive": "true",
            "putTps": put_tps,
            "getTransferredTps": get_tps,
            "getTotalTps": get_tps,
            "getFoundTps": get_tps,
            "getMissTps": "0.0 0.0 0.0",
            "msgPutTotalTodayNow": str(put),
            "msgGetTotalTodayNow": str(got),
            **dict.fromkeys(_NOT_COUNTED, "0"),
            **queues,
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
            "putMessageSizeTotal": str(hi),
            "putMessageAverageSize": f"{hi / put if put else 0:.1f}",
            "putMessageDistributeTime": _ranges_of(took),
            "remainTransientStoreBufferNumbs": "2147483647",
            **delays,
        }

    def _earliest_unix_ms(self) -> int:
        """Return when the oldest message of the first topics was stored; now, without one."""
        store, found = self._context.store, unix_ms()
        for topic in list(self._context.state.topics)[:_TOPICS_LOOKED_AT_MAX]:
            first_ms = self._shared.stored_ms(topic, 0, store.queue_range(topic, 0)[0])
            found = min(found, found if first_ms is None else first_ms)
        return found

    @staticmethod
    def _three(meter: Meter) -> str:
        return " ".join(f"{meter.last(seconds).per_s:.1f}" for seconds in _SPANS_S)

    # --- How it is set ---

    async def config(self, _request: Request) -> Answer:
        """Return the settings as lines, without what is secret."""
        lines = [f"brokerName={self._names.all[0]}", "brokerId=0"]
        for name, value in sorted(self._settings.model_dump(mode="json").items()):
            if not any(part in name for part in _HIDDEN):
                lines.append(f"{name}={value}")
        body = "".join(f"{line}\n" for line in lines).encode()
        return Answer(ext={"version": json_body(data_version()).decode()}, body=body)


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
