"""A command for units of tests: says something, and ends as it is told."""

import os
import signal
import subprocess
import sys

LINES = {
    "pass": "12 simulated s, 3 faults, 40 operations\n5 passed, 0 failed",
    "fail": "seed 7 failed: I7\nreplay with: python -m x replay 7\n4 passed, 1 failed",
    "missing": "cannot run: no toxiproxy here",
}
CHILDREN = {
    # One that needs a while to put things back, and one that does not end when it is asked.
    "tidy": """
import signal, sys, time
def tidy(*_):
    time.sleep(0.3)
    print("tidied", file=sys.stderr, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, tidy)
print("listening", flush=True)
while True:
    signal.pause()
""",
    "deaf": """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("listening", flush=True)
while True:
    signal.pause()
""",
}
CODES = {"pass": 0, "fail": 1, "missing": 3}


def main(what: str) -> int:
    if what == "hang":
        # With a child that does not go by itself either.
        child = subprocess.Popen(["sleep", "1000"])
        print(f"child {child.pid}", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pause()
    if what in CHILDREN:
        # The child tells that it listens, and only then this process goes on.
        child = subprocess.Popen(
            [sys.executable, "-c", CHILDREN[what]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sys.stdout,
        )
        assert child.stdout is not None
        child.stdout.readline()
        print("ready" if what == "tidy" else f"child {child.pid}", flush=True)
        signal.pause()
    if what == "flood":
        while True:
            print("x" * 100_000)
    if what == "interrupt":
        # As Ctrl-C at a terminal: to the campaign, and not to this process.
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
    print(LINES[what])
    return CODES[what]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
