"""The body of a configuration entry: the members, as bytes of the log.

Owns the encoding in entries; on the wire the same message is a part of headers
(`node.replication.raft.codec`). Must not know what a configuration means.
"""

from google.protobuf.message import DecodeError

from quorumlog.pb import peer_pb2 as pb
from raft.messages import Configuration


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the body of an entry with a configuration."""
    voters, learners = configuration
    return pb.Configuration(voters=voters, learners=learners).SerializeToString(deterministic=True)


def decode_configuration(body: bytes) -> Configuration | None:
    """Return the configuration of an entry's body; None when the bytes are not one."""
    try:
        message = pb.Configuration.FromString(body)
    except DecodeError:
        return None
    voters, learners = tuple(message.voters), tuple(message.learners)
    is_sane = voters and min((*voters, *learners)) > 0
    is_ordered = list(voters) == sorted(set(voters)) and list(learners) == sorted(set(learners))
    if not (is_sane and is_ordered and not set(voters) & set(learners)):
        return None
    return Configuration(voters, learners)
