"""Command records: the prepared layout for batches gives the same bytes as the general encoder."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.state.command_records import CommandEncoder, command_of, commands_in
from quorumlog.pb.state_pb2 import Command
from tests.store.records import BORN

HOSTS = (("127.0.0.1", 10911), ("::1", 10911))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**32 - 1),
            st.binary(max_size=16),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(HOSTS),
)
def test_the_record_of_a_batch_is_that_of_its_command(
    batches: list[tuple[int, int, int, int, bytes]], host: tuple[str, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: BORN * 1_000_000)
        encoder, other = CommandEncoder(host), CommandEncoder(host)
        for producer_id, sequence, record_count, size_bytes, asked in batches:
            command = Command(
                producer_batch=Command.ProducerBatch(
                    producer_id=producer_id,
                    sequence=sequence,
                    record_count=record_count,
                    size_bytes=size_bytes,
                    asked=asked,
                )
            )
            record = encoder.encode_producer_batch(
                producer_id, sequence, record_count, size_bytes, asked
            )
            assert record == other.encode(command)
            assert command_of(record) == command
            assert [found for _, found in commands_in(record)] == [command]
