"""README and the first hour as they stand, each in one shell on a terminal of 80 columns."""

import os
import pty
import re
import shlex
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from deploy.local_process import free_ports, is_free
from qlog.connection import SERVER_VARIABLE
from quorumlog.local_cluster import DIRECTORY_VARIABLE

ROOT = Path(__file__).parents[2]
SKIPPED = {
    "README.md": {
        "   SDK, qlog": "it is a picture",
        "./deploy/quickstart": "tests/deploy/jobs runs that job, and the other is the gate",
    },
    "docs/start.md": {
        "  acked ": "it is what the job shows",
        "deploy/venv &&": "tests/deploy/test_build_packages.py makes and installs wheels",
        "pip install rocketmq": "it installs from the network",
        "from rocketmq import": "tests/compat/test_readme.py runs it with that client",
    },
}
"""By page: how a block begins that is not run, and why."""
FINDS = "qlog cluster status"
"""How a line begins that ends with 1, as the page says."""
COLUMNS = 80


def lines_for_shell(page: str, directory: Path, base_port: int) -> list[str]:
    """Return the lines of a page at free ports, with the test's own place for temporary files."""
    lines, skipped = list[str](), set[str]()
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(r"^```(python)?\n(.*?)^```$", text, re.M | re.S)
    for number, (language, block) in enumerate(blocks):
        if found := [start for start in SKIPPED[page] if block.startswith(start)]:
            skipped |= {*found}
            continue
        text = block.replace("8081", str(base_port)).replace("/tmp/", f"{directory}/")
        if language:
            (directory / f"{number}.py").write_text(text)
            text = f"python {number}.py"
        lines += text.splitlines()
    assert skipped == SKIPPED[page].keys()
    return lines


def on_terminal(script: str, directory: Path) -> str:
    """Run a script of bash where no variable names a cluster, and return what is left on screen."""
    names = {SERVER_VARIABLE, DIRECTORY_VARIABLE, "VIRTUAL_ENV", "COLUMNS"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HOME": str(directory), "PATH": os.defpath, "TERM": "xterm"}
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, COLUMNS))
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=directory,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = bytearray()
    with open(master, "rb", buffering=0) as screen:
        try:
            while part := screen.read(4096):
                shown += part
        except OSError:  # The shell, the last one at the other end, has ended.
            shell.wait()
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]|[^\n]*\r(?!\n)|\r", "", shown.decode())


@pytest.mark.long
@pytest.mark.parametrize("page", SKIPPED)
def test_a_page_runs_from_top_to_bottom_with_one_cluster(page: str, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    bases = (free_ports(1)[0] for _ in range(1_000))
    base_port = next(base for base in bases if all(map(is_free, range(base, base + 30))))
    lines = lines_for_shell(page, tmp_path, base_port)
    script = "".join(f"{line}\necho code $?: {shlex.quote(line)}\n" for line in lines)
    try:
        shown = on_terminal(script, tmp_path)
    finally:
        for left in tmp_path.rglob("local.json"):
            LocalCluster.open(left.parent).stop()
    ended = re.findall(r"^code (\d+): (.*)$", shown, re.M)
    assert ended == [(str(int(line.startswith(FINDS))), line) for line in lines], shown
    own = [line for line in shown.splitlines() if line[:5] != "code " and str(tmp_path) not in line]
    assert [line for line in own if len(line) > COLUMNS] == [], "lines for a wider terminal"
    assert own.count("two pies") == 1, "a bar is in the way of the bodies"
    assert not [*tmp_path.rglob("local.json")], "the last line leaves no cluster"
