"""Numbers of the remoting protocol: requests, and results of requests.

Owns the numbers, and which requests are refused whatever they say: the enum has all others.
Source: RocketMQ RequestCode, ResponseCode.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final


class RequestCode(IntEnum):
    """What a command asks for."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_BROKER_HA_STATUS = 907
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    CHANGE_MESSAGE_INVISIBLETIME = 200053


class ResponseCode(IntEnum):
    """How a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_TIMEOUT = 210


SENT: Final = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}
"""Requests of the node to its clients."""
_INSTEAD: Final = (
    (
        "brokers of RocketMQ do not register here: copy them with qlog rocketmq import",
        "REGISTER_BROKER=103 UNREGISTER_BROKER=104 QUERY_DATA_VERSION=322",
    ),
    (
        "settings are those of the node's file: change it there and restart the node",
        "UPDATE_BROKER_CONFIG=25 UPDATE_NAMESRV_CONFIG=318",
    ),
    (
        "slaves of RocketMQ do not copy from here: use 'qlog config-files export'",
        "GET_ALL_CONSUMER_OFFSET=43 GET_ALL_DELAY_OFFSET=45",
    ),
    (
        "users and their rights are changed with 'qlog user' and 'qlog role'",
        "UPDATE_AND_CREATE_ACL_CONFIG=50 DELETE_ACL_CONFIG=51 GET_BROKER_CLUSTER_ACL_INFO=52 "
        "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG=53 GET_BROKER_CLUSTER_ACL_CONFIG=54 "
        "AUTH_CREATE_USER=3001 AUTH_UPDATE_USER=3002 AUTH_DELETE_USER=3003 AUTH_GET_USER=3004 "
        "AUTH_LIST_USER=3005 AUTH_CREATE_ACL=3006 AUTH_UPDATE_ACL=3007 AUTH_DELETE_ACL=3008 "
        "AUTH_GET_ACL=3009 AUTH_LIST_ACL=3010",
    ),
    (
        "delayed messages have no timer files here: use 'qlog delay status'",
        "GET_TIMER_CHECK_POINT=60 GET_TIMER_METRICS=61 SWITCH_TIMER_ENGINE=5001",
    ),
    (
        "nodes elect their leader without a controller: use 'qlog cluster status', 'qlog cluster "
        "transfer-leader' and 'qlog cluster members', with a master 'qlog ha'",
        "ADD_BROKER=902 REMOVE_BROKER=903 RESET_MASTER_FLUSH_OFFSET=908 "
        "CONTROLLER_ELECT_MASTER=1002 CONTROLLER_GET_METADATA_INFO=1005 "
        "CONTROLLER_GET_SYNC_STATE_DATA=1006 GET_BROKER_EPOCH_CACHE=1007 "
        "UPDATE_CONTROLLER_CONFIG=1009 GET_CONTROLLER_CONFIG=1010 CLEAN_BROKER_DATA=1011",
    ),
    (
        "broker names have no slaves: use clusterList, or 'qlog cluster members list'",
        "GET_BROKER_MEMBER_GROUP=901",
    ),
    (
        "there is no RocksDB here: use 'qlog store verify'",
        "CHECK_ROCKSDB_CQ_WRITE_PROGRESS=354 EXPORT_ROCKSDB_CONFIG_TO_JSON=355",
    ),
    (
        "reads of old messages have no limit and no mode of their own here: use 'qlog topic "
        "stats' to see where queues begin",
        "UPDATE_COLD_DATA_FLOW_CTR_CONFIG=2001 REMOVE_COLD_DATA_FLOW_CTR_CONFIG=2002 "
        "GET_COLD_DATA_FLOW_CTR_INFO=2003 SET_COMMITLOG_READ_MODE=2004",
    ),
    (
        "clients are not asked for their offsets: use consumerProgress, or 'qlog group progress'",
        "INVOKE_BROKER_TO_GET_CONSUMER_STATUS=223 QUERY_CONSUME_TIME_SPAN=303",
    ),
    (
        "offsets are not corrected by those of other groups: use resetOffsetByTime, or 'qlog "
        "group reset'",
        "QUERY_CORRECTION_OFFSET=308",
    ),
    (
        "routes follow from topics, whose queues have fixed places: use updateTopic, or 'qlog "
        "topic create'",
        "REGISTER_TOPIC_IN_NAMESRV=217 UPDATE_AND_CREATE_STATIC_TOPIC=513",
    ),
    (
        "nodes ask producers for the outcome at intervals: use 'qlog transaction list'",
        "RESUME_CHECK_HALF_MESSAGE=323",
    ),
    (
        "groups have one list of forbidden topics: use 'qlog group set'",
        "UPDATE_AND_GET_GROUP_FORBIDDEN=353",
    ),
    (
        "delayed messages are recalled with the gRPC clients or the SDK: use 'qlog delay cancel'",
        "RECALL_MESSAGE=370",
    ),
    (
        "pop is served by 200050, 200051 and 200053 alone: use these, or the gRPC clients",
        "GET_ALL_MESSAGE_REQUEST_MODE=402 PEEK_MESSAGE=200052 NOTIFICATION=200054 "
        "POLLING_INFO=200055 POP_ROLLBACK=200056 BATCH_ACK_MESSAGE=200151",
    ),
    (
        "there are no lite topics here: use ordinary topics",
        "POP_LITE_MESSAGE=200070 LITE_SUBSCRIPTION_CTL=200071 ACK_LITE_MESSAGE=200072 "
        "GET_BROKER_LITE_INFO=200074 GET_PARENT_TOPIC_INFO=200075 GET_LITE_TOPIC_INFO=200076 "
        "GET_LITE_CLIENT_INFO=200077 GET_LITE_GROUP_INFO=200078 TRIGGER_LITE_DISPATCH=200079",
    ),
)
"""Why a cluster here does not serve requests of RocketMQ, what to use instead, and the requests."""
_REFUSED: Final = [(reason, *row.split("=")) for reason, rows in _INSTEAD for row in rows.split()]
REFUSED: Final = {int(code): reason for reason, _, code in _REFUSED}
"""Requests that have no meaning here, and why: they are refused with NO_PERMISSION."""
REQUEST_NAMES: Final = {
    **{int(code): code.name for code in RequestCode},
    **{int(code): name for _, name, code in _REFUSED},
}
"""Names of all requests, served, sent or refused."""


def table() -> Iterator[str]:
    """Yield the lines of the table of requests in docs/rocketmq.md."""
    yield "| code | request | |"
    yield "|---|---|---|"
    for code in sorted(REQUEST_NAMES):
        answer = "sent to clients, not served" if code in SENT else "served"
        if code in REFUSED:
            answer = f"refused with {ResponseCode.NO_PERMISSION.name}: {REFUSED[code]}"
        yield f"| {code} | {REQUEST_NAMES[code]} | {answer} |"


if __name__ == "__main__":
    print("\n".join(table()))
