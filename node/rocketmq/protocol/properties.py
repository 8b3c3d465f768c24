"""Names of the properties that the system keeps beside those of users.

Owns the list: RocketMQ's (protocol section 15) and a few of our own for values that a record has no
other place for. A user property must have another name, so user properties can be told from the
rest.
"""

from typing import Final

MESSAGE_GROUP: Final = "__SHARDINGKEY"
BORN_HOST: Final = "__BORNHOST"
MESSAGE_TYPE: Final = "MSG_TYPE"
TRACE_CONTEXT: Final = "__TRACE_CONTEXT"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""Time until which the broker holds a message; gone once it is delivered."""
DELIVERY_TIME_MS: Final = "__DELIVERY_MS"
"""The same time for the consumer: kept in the delivered message."""
DELIVERY_NANOS: Final = "__DELIVERY_NANOS"
RETRY_TOPIC: Final = "RETRY_TOPIC"
DEAD_LETTER_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
BORN_NANOS: Final = "__BORN_NANOS"
BODY_ENCODING: Final = "__BODY_ENCODING"
ORPHAN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
IMPORTED_FROM: Final = "__IMPORTED_FROM"
"""Where a message was that `qlog rocketmq import` copied."""
ADDED: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""Added to each message that is sent by RocketMQ's protocols: without them consumers trace nothing.
"""

_NAMES: Final = """
KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION
TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET
1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL
ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS
TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS
TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
DLQ_ORIGIN_MESSAGE_ID __CRC32# __SHARDINGKEY __TRACE_CONTEXT __DELIVERY_MS
__DELIVERY_NANOS __BORN_NANOS
__BODY_ENCODING CHECK_IMMUNITY_TIME_IN_SECONDS TRANSACTION_CHECK_TIMES
__transactionId__ __IMPORTED_FROM
"""
RESERVED: Final = frozenset(_NAMES.split())
