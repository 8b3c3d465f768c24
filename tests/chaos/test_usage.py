"""What a process holds more of than before is found, kind by kind; what a log needs is no leak."""

import os
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

from chaos.__main__ import GROWN_MIN, GROWTH_MIB_MAX, grows
from chaos.summary import CampaignSummary
from chaos.trial import TrialResult
from chaos.usage import (
    DELETED_SLACK,
    NAMELESS_SLACK,
    SAME_FILE_SLACK,
    SOCKET_SLACK,
    THREAD_SLACK,
    Usage,
)

from tests.chaos.test_gates import some

MIB = 1 << 20


def own() -> Usage:
    return Usage.of(os.getpid())


def test_sockets_and_pipes_that_are_left_over_are_found() -> None:
    before = own()
    with ExitStack() as held:
        for _ in range(SOCKET_SLACK + 1):
            held.enter_context(socket.socket())
        for _ in range(NAMELESS_SLACK):
            for one in os.pipe():
                held.callback(os.close, one)
        excess = own().excess(before)
    assert [text.split(" instead")[0].partition(" ")[2] for text in excess] == [
        "sockets",
        "descriptors without a name",
    ]
    assert own().excess(before) == []


def test_files_may_be_many_and_not_one_many_times_nor_deleted(tmp_path: Path) -> None:
    before = own()
    with ExitStack() as held:
        for number in range(50):
            held.enter_context((tmp_path / f"{number}").open("w"))
        assert own().excess(before) == []
        for _ in range(before.same_file_count + SAME_FILE_SLACK):
            held.enter_context((tmp_path / "0").open("r"))
        assert [text.split(" instead")[0] for text in own().excess(before)] == [
            f"{before.same_file_count + SAME_FILE_SLACK + 1} descriptors of one file"
        ]
        for number in range(1, DELETED_SLACK + 2):
            (tmp_path / f"{number}").unlink()
        assert any("of deleted files" in text for text in own().excess(before))


def test_threads_that_are_left_over_are_found() -> None:
    before, over = own(), threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(THREAD_SLACK + 1)]
    try:
        for thread in threads:
            thread.start()
        assert ["threads" in text for text in own().excess(before)] == [True]
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_memory_is_what_a_process_has_for_itself() -> None:
    before = own().memory_size_bytes
    taken = bytearray(b"x" * (64 * MIB))
    assert own().memory_size_bytes - before > 32 * MIB
    del taken


def summary(results: list[TrialResult]) -> CampaignSummary:
    return CampaignSummary(results, seed=1, mode="raft", version="-", took_s=1.0)


def test_nodes_that_grow_from_scenario_to_scenario_are_found() -> None:
    def run(step: int) -> CampaignSummary:
        sizes = [dict.fromkeys(range(GROWN_MIN), 100 * MIB + at * step) for at in range(4)]
        return summary([some(memory_size_bytes=found) for found in sizes])

    assert not grows(run(int(GROWTH_MIB_MAX) * MIB))
    assert grows(run(int(GROWTH_MIB_MAX + 1) * MIB))
    # Who lived through one scenario or two shows nothing.
    assert not grows(summary([some(memory_size_bytes={7: at << 30}) for at in (1, 2)]))
    assert run(5 * MIB).growth_mib is not None
