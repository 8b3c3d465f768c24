"""README and the pages of tasks as they stand, each in one shell on a terminal of 80 columns."""

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
OTHER_MACHINE = "it is of another machine, or of root"
SHOWN = "it is what a command shows"
SKIPPED = {
    "README.md": {
        "   SDK, qlog": "it is a picture",
        "./deploy/quickstart": "tests/deploy/jobs runs that job, and the other is the gate",
        "7F0000": SHOWN,
    },
    "docs/console.md": {"qlog console": "it serves until Ctrl-C; tests/qlog/console does that"},
    "docs/start.md": {
        "  input ": "it is what the job shows",
        ".venv/bin/python -m deploy": "tests/deploy/test_build_packages.py makes the wheels",
        "scp": OTHER_MACHINE,
        "pip install rocketmq": "it installs from the network",
        "from rocketmq import": "tests/compat/test_readme.py runs it with that client",
        "018E1F": SHOWN,
    },
    "docs/configuration.md": {"qlog serve": "it runs until it is stopped"},
    "docs/three-machines.md": {
        "python3 -m venv": "tests/deploy/test_build_packages.py installs the wheels",
        "chown": OTHER_MACHINE,
        "ssh": OTHER_MACHINE,
        "systemctl": OTHER_MACHINE,
    },
    "docs/upgrading.md": {
        "python3 -m venv": OTHER_MACHINE,
        "/opt/quorumlog": OTHER_MACHINE,
        "$ qlog cluster upgrade": SHOWN,
        "quorumlog: the process ends": SHOWN,
    },
    "docs/planning.md": {},
    "docs/users.md": {},
    "docs/operations.md": {
        "qlog user init": "tests/cluster/test_users.py has these steps",
        "export QUORUMLOG_TOKEN_FILE": "the same",
        "export QUORUMLOG_SERVER=HOST1": OTHER_MACHINE,
        "qlog config check node.toml": "docs/configuration.md has the same",
        "useradd": OTHER_MACHINE,
        "docker": "tests/deploy/test_container.py runs the container's file system",
        "$ qlog cluster status": SHOWN,
        "node_id  ...": SHOWN,
        "qlog cluster members remove": OTHER_MACHINE,
        "qlog serve --config node4.toml": OTHER_MACHINE,
        "# Master, copies": "it is of master-slave mode, which tests/cluster/test_ha.py runs",
        "qlog check --server HOST1": OTHER_MACHINE,
        "qlog serve --config node1.toml": OTHER_MACHINE,
        "qlog store reset-admin": "tests/cluster/test_admin_reset.py runs it",
        "qlog store restore": "tests/cluster/test_restore.py makes the backup and runs it",
        "qlog tls dev": "its output stands below it",
        "openssl x509": OTHER_MACHINE,
    },
}
"""By page: how a block or a line begins that is not run, and why."""
ACTIVATE = ["source .venv/bin/activate"]
LOCAL = [*ACTIVATE, "qlog local start --port 8081", "qlog topic create orders"]
BEFORE = {
    "docs/configuration.md": [
        *ACTIVATE,
        "umask 077",
        "python -c 'import secrets; print(secrets.token_hex())' > etc/quorumlog/secret",
    ],
    "docs/three-machines.md": LOCAL,
    "docs/upgrading.md": LOCAL,
    "docs/planning.md": ACTIVATE,
    "docs/users.md": ACTIVATE,
    "docs/operations.md": [*LOCAL, "until qlog nameserver route orders; do :; done"],
}
"""What runs before a page that does not begin with an installation."""
FILES = {"certificate_file": "server.pem", "key_file": "server.key", "ca_file": "ca.pem"}
TLS = (
    "qlog local stop && qlog local start --dir tls --port 8081"
    + "".join(f" --setting tls_{setting}=$PWD/certs/{file}" for setting, file in FILES.items())
    + " --setting tls_client_auth=true"
)
"""Starts in the place of the page's cluster one with client certificates."""
SMALL = {
    "docs/three-machines.md": {
        "/etc/systemd/system": "/etc/quorumlog",
        # A unit takes no directory in memory, where this test may run.
        "qlog serve": "sed -i '/^dir/s|=.*|= \"/srv/q\"|' /etc/quorumlog/node.toml; qlog serve",
        "topic create orders": "topic create orders --exist-ok",
        "log1.example:8081,log2.example:8081,log3.example:8081": "127.0.0.1:8081",
        "qlog bench produce": "qlog bench produce --seconds 0.1",
        "--host log2.example --host log3.example": "",
        "scp certs/{ca.pem,server.pem,server.key} log1.example:/etc/quorumlog/": TLS,
    },
    "docs/upgrading.md": {
        "kill -TERM PID": "qlog local stop --node 2",
        "qlog serve --config node.toml": "qlog local start",
    },
    "docs/planning.md": {"--dir /var/lib/quorumlog": "--quick"},
    "docs/operations.md": {
        "--cluster-id orders": '--cluster-id "$(qlog cluster status -o json | jq -r .cluster_id)"'
    },
}
"""By page: what stands for what on one machine."""
SETTINGS = "docs/configuration.md"
FINDS = "ends with 1 and"
"""Says in the comment of a line how it ends."""
COLUMNS = 80


def lines_for_shell(page: str, directory: Path, base_port: int) -> list[str]:
    """Return the lines of a page at free ports, with the test's own place for files."""
    lines, skipped = BEFORE.get(page, []).copy(), set[str]()
    for language, code in blocks(page):
        block = code.replace("\\\n", "")
        if language and not starts(block, page):
            (directory / f"{len(lines)}.py").write_text(here(code, page, directory, base_port))
            block = f"python {len(lines)}.py"
        for line in [block] if starts(block, page) else block.splitlines():
            skipped |= starts(line, page)
            lines += [] if starts(line, page) else [line]
    assert skipped == SKIPPED[page].keys()
    return [here(line, page, directory, base_port) for line in lines]


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the lines for a shell and the programs of a page, as language and text."""
    found = re.findall(r"^( *)```(.*)\n((?s:.*?))^\1```$", (ROOT / page).read_text("utf-8"), re.M)
    return [
        (language, re.sub(f"^{margin}", "", code, flags=re.M))
        for margin, language, code in found
        if language in ("", "python")
    ]


def starts(text: str, page: str) -> set[str]:
    """Return how a block or a line begins that is not run."""
    return {start for start in SKIPPED[page] if text.startswith(start)}


def here(text: str, page: str, directory: Path, base_port: int) -> str:
    """Put what this machine has into a text."""
    small = SMALL.get(page, {}) | {"8081": str(base_port)}
    small |= {f"{root}/": f"{directory}/{root[1:]}/" for root in ("/tmp", "/etc", "/var")}
    for there, this in small.items():
        text = text.replace(there, this)
    return text


def on_terminal(script: str, directory: Path) -> str:
    """Run a script of bash where no variable names a cluster, and return what is left on screen."""
    names = {SERVER_VARIABLE, DIRECTORY_VARIABLE, "VIRTUAL_ENV", "COLUMNS", "XDG_CONFIG_HOME"}
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


def test_every_page_with_commands_is_run() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    names = [str(page.relative_to(ROOT)) for page in pages]
    found = {name for name in names if any(re.search("^ *qlog ", b, re.M) for _, b in blocks(name))}
    assert found - {"docs/cli.md", "docs/pipeline.md"} == SKIPPED.keys(), "pipeline needs Java"


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] * (page != SETTINGS)) for page in SKIPPED]
)
def test_a_page_runs_from_top_to_bottom_with_one_cluster(page: str, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for folder in ("tmp", "etc/quorumlog", "var/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", (ROOT / SETTINGS).read_text(), re.M | re.S)
    for path in (tmp_path / "node.toml", tmp_path / "etc/quorumlog/node.toml"):
        path.write_text(here(settings, "", tmp_path, 8081))
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
    assert ended == [(str(int(FINDS in line)), line) for line in lines], shown
    paths = ("code ", str(tmp_path), sys.base_prefix)
    own = [line for line in shown.splitlines() if not any(path in line for path in paths)]
    assert [line for line in own if len(line) > COLUMNS] == [], "lines for a wider terminal"
    if page not in BEFORE:
        assert own.count("two pies") == ("two pies" in (ROOT / page).read_text()), "a bar is in it"
        assert not [*tmp_path.rglob("local.json")], "the last line leaves no cluster"
