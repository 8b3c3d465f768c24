"""Freed memory stays with the process: large pieces come and go without page faults."""

import subprocess
import sys

FAULTS = """
import resource, sys
from node.runtime.heap import keep_freed_memory
if sys.argv[1:] == ["kept"]:
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def pass_on():
    [bytearray(64 << 10) for _ in range(40)]
for _ in range(4):
    pass_on()
before = faults()
for _ in range(50):
    pass_on()
print(faults() - before)
"""
PAGE_COUNT = 50 * 40 * (64 << 10) // 4096


def faults(*arguments: str) -> int:
    words = [sys.executable, "-c", FAULTS, *arguments]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_messages_of_64_kib_cost_no_faults() -> None:
    assert faults("kept") < PAGE_COUNT / 100
