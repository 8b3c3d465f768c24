"""The image and the three nodes of compose.yaml: their files, commands, settings and ports; and, as
no engine is needed for that, the root file system of the image with the nodes in it."""

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import pytest

from deploy.local import LocalCluster
from node.config.load import load
from tests import missing
from tests.deploy.test_scripts import closure
from tests.patience import wait_for

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "deploy" / "container"
IMAGE = re.sub(r"\\\n\s*", "", (CONTAINER / "Dockerfile").read_text("utf-8"))
COMPOSE = (CONTAINER / "compose.yaml").read_text("utf-8")
USER = 10001
WRITE = """import os
try:
    open("/opt/quorumlog/file", "w")
except OSError as error:
    print(os.getuid(), error.strerror)
"""


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", IMAGE, re.M)


def command(instruction: str) -> list[str]:
    """Return the words of an instruction that has them as a list."""
    words: list[str] = json.loads(instruction[instruction.index("[") :])
    return words


HEALTH = command(instructions("HEALTHCHECK")[0])
SERVE = command(instructions("ENTRYPOINT")[0]) + command(instructions("CMD")[0])


def environment(node_id: int) -> dict[str, str]:
    """Return the variables of a node: of the image and of compose.yaml."""
    image = dict(line.split("=", 1) for line in instructions("ENV"))
    settings = dict(re.findall(r'^  ([A-Z_]+): "?([^"\n]+)', COMPOSE, re.M))
    return {**image, **settings, "QUORUMLOG_NODE_ID": str(node_id)}


def test_the_image_copies_what_is_there_and_serves() -> None:
    assert instructions("COPY")[0] == ". ."
    everything, *sources, ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()[1:]
    assert (everything, ignored) == ("*", "**/__pycache__")
    assert [one for one in sources if one[0] != "!" or not [*ROOT.glob(one[1:])]] == []
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    named = {name for name in packages["packages"]["find"]["include"] if "." not in name}
    assert named <= {one[1:] for one in sources}
    assert SERVE == ["qlog", "serve"]


def test_the_health_check_asks_this_node_alone(tmp_path: Path) -> None:
    """A node that waits for others is healthy, and is not ready."""

    def health(page: str) -> int:
        variables = image | {"HEALTH_PAGE": page, "http_proxy": "http://127.0.0.1:9"}
        command = [sys.executable, *HEALTH[1:]]
        return subprocess.run(command, env=variables, check=False).returncode

    image = dict(line.split("=", 1) for line in instructions("ENV"))
    assert (image["HEALTH_PAGE"], environment(1)["HEALTH_PAGE"]) == ("/live", "/ready")
    cluster = LocalCluster.create(tmp_path / "c", 2)
    try:
        cluster.start(1)
        image["QUORUMLOG_HTTP_LISTEN"] = cluster.status()[0].http_address
        wait_for("the port", lambda: health("/live") == 0)
        assert health("/ready") == 1
        cluster.start(2)
        wait_for("the leader", lambda: health("/ready") == 0)
    finally:
        cluster.stop()


def test_the_nodes_of_compose_take_their_settings_and_agree_on_ports(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("s" * 64)
    exposed = instructions("EXPOSE")[0].split()
    for node_id in (1, 2, 3):
        assert f"QUORUMLOG_NODE_ID: {node_id}}}" in COMPOSE
        settings = load(None, {"secret_file": secret}, environment(node_id)).settings
        own = settings.peers[node_id]
        assert [str(own.address), str(own.peer_address)] == [
            f"node{node_id}:{settings.listen.port}", f"node{node_id}:{settings.peer_listen.port}"
        ]  # fmt: skip
        assert settings.http_listen is not None
        scraped = f"node{node_id}:{settings.http_listen.port}"
        assert scraped in (CONTAINER / "prometheus.yml").read_text("utf-8")
        ports = [settings.listen.port, settings.peer_listen.port, settings.http_listen.port]
        assert {*map(str, ports), str(settings.listen.port + 1000)} == {*exposed}
    stop_s = int(re.findall(r"stop_grace_period: (\d+)s", COMPOSE)[0])
    assert stop_s * 1000 > settings.drain_timeout_ms + 30_000
    mounted = re.findall(r"(\.\.?/[\w./-]*):/", COMPOSE)
    assert len(mounted) == 5
    volumes = set(re.findall(r"(\w+): {}", COMPOSE))
    assert volumes == set(re.findall(r"[\" ](\w+):/", COMPOSE)) >= {"prometheus", "grafana"}
    assert COMPOSE.count("restart: unless-stopped") == 3
    assert [name for name in mounted if not (CONTAINER / name).exists()] == []


def libraries(files: Iterator[Path]) -> set[Path]:
    """Return the libraries of the system that programs and libraries are linked with."""
    said = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, re.M)}


def build_root(root: Path, wheels: Path) -> None:
    """Make what the last stage of the Dockerfile has, of the Python that is here: it, the libraries
    of the system, the packages of a node, and the wheels."""
    base, own = Path(sys.base_prefix), root / "opt/quorumlog/.venv"
    library = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    ignored = shutil.ignore_patterns("site-packages", "dist-packages", "test", "tests", "config-*")
    shutil.copytree(base / library, root / base.relative_to("/") / library, ignore=ignored)
    python = Path(sys.executable).resolve()
    subprocess.run([python, "-m", "venv", "--without-pip", own], check=True)
    site = own / library / "site-packages"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name in closure(project["dependencies"]):
        for file in importlib.metadata.files(name) or []:
            if ".." not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), site / file)
    pip = [sys.executable, "-m", "pip", "--python", str(own / "bin/python"), "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", *wheels.glob("*.whl")], check=True)
    script = own / "bin" / "qlog"
    script.write_text(script.read_text().replace(str(root), "", 1))
    binaries = chain([python], (root / base.relative_to("/")).rglob("*.so"), site.rglob("*.so"))
    for path in {python, *(path for path in libraries(binaries) if root not in path.parents)}:
        (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to("/"))
    for name in ("proc", "dev", "etc/quorumlog", "var/lib/quorumlog"):
        (root / name).mkdir(parents=True)
    for name in ("null", "urandom"):
        (root / "dev" / name).touch()
    hosts = "".join(f"127.0.0.{node_id} node{node_id}\n" for node_id in (1, 2, 3))
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{hosts}")


def child(process: subprocess.Popen[str]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii")
    return int(children.split()[0])


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate()
    return process.returncode


class Engine:
    """Runs containers of one root: namespaces for all, and for each its own volume."""

    def __init__(self, root: Path, volumes: Path) -> None:
        self.root, self.volumes = root, volumes
        mounts = f"""set -e
            ip link set lo up
            mount --bind {root} {root}
            mount -t proc proc {root}/proc
            for name in null urandom; do mount --bind /dev/$name {root}/dev/$name; done
            mount -o remount,bind,ro {root}
            mount --bind {self.volume("secret")} {root}/etc/quorumlog
            echo ready; read -r _"""
        apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.init = subprocess.Popen(
            [*apart, "sh", "-c", mounts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.init.stdout is not None
        if self.init.stdout.readline() != "ready\n":
            self.close()
            missing.injector("no right to mount")

    def volume(self, name: str) -> Path:
        path = self.volumes / name
        path.mkdir(exist_ok=True)
        os.chown(path, USER, USER)
        return path

    def start(self, *words: str, node_id: int = 1) -> subprocess.Popen[str]:
        """Start a command of the image as its user, with the volume and variables of a node."""
        variables = environment(node_id) | {"QUORUMLOG_SERVER": "node1:8081,node2:8081,node3:8081"}
        address = f"127.0.0.{node_id}"  # They share a network here.
        variables = {name: text.replace("0.0.0.0", address) for name, text in variables.items()}
        bind = f"mount --bind {self.volume(f'node{node_id}')} {self.root}/var/lib/quorumlog"
        user = f"--userspec={USER}:{USER} --groups={USER}"
        run = f'{bind} && exec chroot {user} {self.root} "$@"'
        into = ["nsenter", "--target", str(child(self.init)), "--mount", "--net", "--pid"]
        with open(self.volumes / f"{node_id}.log", "a") as log:
            return subprocess.Popen(
                [*into, "unshare", "--mount", "sh", "-c", run, "sh", *words],
                env=variables | {"PATH": f"{variables['PATH']}:/usr/sbin:/sbin"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(self, *words: str, text: str = "") -> str:
        started = self.start(*words)
        said, _ = started.communicate(text)
        assert started.returncode == 0, self.log()
        return said

    def wait(self, nodes: Mapping[int, subprocess.Popen[str]], *words: str) -> None:
        """Repeat a command until it ends with 0; no node may end before."""
        while ended(self.start(*words)) != 0:
            assert all(node.poll() is None for node in nodes.values()), self.log()

    def log(self) -> str:
        return "".join(path.read_text("utf-8") for path in self.volumes.glob("*.log"))

    def close(self) -> None:
        self.init.kill()
        self.init.communicate()


@pytest.mark.long
def test_three_nodes_of_the_image_lose_nothing_when_one_is_killed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        missing.injector("no right to mount")
    wheels, root, volumes = (tmp_path / name for name in ("wheels", "root", "volumes"))
    build = [sys.executable, "-P", "-m", "deploy.build_packages", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True)
    build_root(root, wheels)
    volumes.mkdir()
    engine = Engine(root, volumes)
    try:
        script = re.findall(r"- \|\n((?: {8}.*\n)+)", COMPOSE)[0]
        engine.run("python", "-c", textwrap.dedent(script))
        nodes = {node_id: engine.start(*SERVE, node_id=node_id) for node_id in (1, 2, 3)}
        engine.wait(nodes, *HEALTH)
        assert engine.run("python", "-c", WRITE) == f"{USER} Read-only file system\n"
        engine.run("qlog", "topic", "create", "orders")
        engine.run("qlog", "produce", "orders", text="one pie\n")
        leader = json.loads(engine.run("qlog", "cluster", "status", "-o", "json"))["leader_id"]
        os.kill(child(nodes[leader]), signal.SIGKILL)
        ended(nodes[leader])
        engine.run("qlog", "produce", "orders", text="two pies\n")
        nodes[leader] = engine.start(*SERVE, node_id=leader)
        read = engine.run("qlog", "consume", "orders", "--until", "end")
        assert sorted(read.splitlines()) == ["one pie", "two pies"]
        engine.wait(nodes, "qlog", "cluster", "status")
        for node in nodes.values():
            os.kill(child(node), signal.SIGTERM)
        assert [ended(node) for node in nodes.values()] == [0, 0, 0]
    finally:
        engine.close()
