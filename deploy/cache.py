"""The programs of other projects that tests, fault suites and benchmarks run, once a machine.

Owns what each is made of, how it is made, and its place: the cache of the user, under its name and
a digest of the files that pin it. A directory there is complete. Only `make` uses the network.

    python -m deploy.cache NAME...    make these; those that are there are left alone
"""

import fcntl
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
OFFICIAL: Final = ROOT / "tests" / "compat" / "official"
PEERS: Final = ROOT / "bench" / "peers"
STORE_PROGRAMS: Final = ROOT / "tests" / "compat" / "java"
TOXIPROXY_VERSION: Final = "2.12.0"
_TOXIPROXY: Final = "github.com/Shopify/toxiproxy/v2"
SPARK_CLASSES: Final = "classes.jsa"
"""Name of the file in `spark-classes`."""
_WORDS_MAX: Final = 300
"""Of the line in which a failed program says why."""


class NotInstalledError(Exception):
    """A program of others is not there, or could not be made. Says what, why and what to do."""

    def __init__(self, what: str, why: str, do: str) -> None:
        super().__init__(what, why, do)
        self.what, self.why, self.do = what, why, do

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  do:  {self.do}"


class CachedProgram(NamedTuple):
    """One entry of the cache."""

    pins: tuple[str, ...]
    """Texts, and after them patterns of files below the root: what it is made of."""
    tools: tuple[str, ...]
    """Programs that it is made with."""
    make: Callable[[Path], None]
    """Make it in an empty directory, which is moved afterwards."""
    tier: str = "long"
    """What needs it: `gate`, `long`, or `bench`, which alone is not part of a set-up with --all."""


def _toxiproxy(directory: Path) -> None:
    version = f"-X {_TOXIPROXY}.Version={TOXIPROXY_VERSION}"
    module = f"{_TOXIPROXY}/cmd/server@v{TOXIPROXY_VERSION}"
    _run("go", "install", "-ldflags", version, module, GOBIN=str(directory), GOFLAGS="")
    (directory / "server").rename(directory / "toxiproxy-server")
    said = _run(str(directory / "toxiproxy-server"), "-version")
    if not said.strip().endswith(f" {TOXIPROXY_VERSION}"):
        raise NotInstalledError("toxiproxy was built wrong", f"it says {said.strip()}", "see go")


def _client_python(directory: Path) -> None:
    _run(sys.executable, "-m", "venv", str(directory))
    python, pins = str(directory / "bin" / "python"), str(OFFICIAL / "python" / "pins.txt")
    try:
        _run(sys.executable, "-m", "uv", "pip", "install", "--python", python, "-r", pins)
    except subprocess.CalledProcessError:  # pip has its own settings, and says what is wrong.
        _run(python, "-m", "pip", "install", "-q", "--no-input", "-r", pins)


def _client_node(directory: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(OFFICIAL / "node" / name, directory)
    options = ("--loglevel=error", "--no-audit", "--no-fund", "--ignore-scripts")
    _run("npm", "ci", *options, "--prefix", str(directory))


def _go_client(folder: str, directory: Path) -> None:
    """Our program with a client for Go, from the module that pins it."""
    program = str(directory / "client")
    _run("go", "build", "-C", str(OFFICIAL / folder), "-mod=readonly", "-o", program, ".")


def _java_client(folder: str, directory: Path) -> None:
    """The jars of each line of a client that a pom names, and our program for them."""
    pom = OFFICIAL / folder / "pom.xml"
    lines = r"<client\.(?:older|middle|recent|newest)>(.+)</client"
    for version in re.findall(lines, pom.read_text("utf-8")):
        at = directory / version
        _copy_jars(pom, at / "lib", f"-Dclient.version={version}")
        _compile([OFFICIAL / folder], at / "lib", at / "classes")


def _go_peer(peer: str, program: str, package: str, directory: Path) -> None:
    """A server in Go, from the module that is pinned with the hashes of all that it needs."""
    output = str(directory / program)
    words = ("-C", str(PEERS / peer), "-mod=readonly", "-o", output, package)
    # An older Go must not fetch another one.
    _run("go", "build", *words, GOTOOLCHAIN="local")


def _java_peer(peer: str, directory: Path) -> None:
    """The jars that a pom names, and our driver of the client, if there is one."""
    jars = directory / "lib"
    _copy_jars(PEERS / peer / "pom.xml", jars)
    _check(jars, PEERS / peer / "jars.sha256")
    if (PEERS / peer / "Driver.java").exists():
        _compile([PEERS / "java", PEERS / peer], jars, directory / "classes")


def _rocketmq(directory: Path) -> None:
    _java_peer("rocketmq", directory)
    _compile([STORE_PROGRAMS], directory / "lib", directory / "store-programs")


def _check(jars: Path, sums: Path) -> None:
    """Compare files with their digests, a line each as sha256sum writes it."""
    for line in sums.read_text("utf-8").splitlines():
        digest, name = line.split()
        path = jars / name.removeprefix("*")
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise NotInstalledError(
                f"{path.name} is another file than {sums.relative_to(ROOT)} names",
                "Maven brought another one, or none",
                "find out why; after a change of the version write that file again with sha256sum",
            )


def _copy_jars(pom: Path, directory: Path, *options: str) -> None:
    goal = ("dependency:copy-dependencies", "-DincludeScope=runtime")
    _run("mvn", "-q", "-B", "-C", "-f", str(pom), *goal, f"-DoutputDirectory={directory}", *options)


def _compile(sources: list[Path], jars: Path, directory: Path) -> None:
    files = sorted(str(file) for folder in sources for file in folder.glob("*.java"))
    _run("javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(directory), *files)


def _spark_classes(directory: Path) -> None:
    """Java's archive of the classes that a start of Spark loads, which halves such a start.

    It takes a minute to make, so a first gate does without it."""
    program = ("-P", "-m", "tests.pipeline.spark_classes", str(directory / SPARK_CLASSES))
    subprocess.run((sys.executable, *program), cwd=ROOT, check=True, capture_output=True, text=True)


def _spark_and_java() -> str:
    """Return a key of the jars and the Java that the archive is valid for: Java does without it
    where they differ."""
    try:
        jars = str(importlib.metadata.distribution("pyspark").locate_file(""))
    except importlib.metadata.PackageNotFoundError:
        jars = "none"
    paths = (os.path.realpath(path) for path in (jars, shutil.which("java") or "none"))
    return hashlib.sha256("\n".join(paths).encode()).hexdigest()


PARTS: Final = {
    "toxiproxy": CachedProgram((TOXIPROXY_VERSION,), ("go",), _toxiproxy, tier="gate"),
    "client-python": CachedProgram(
        (sys.version, "tests/compat/official/python/pins.txt"), (), _client_python, tier="gate"
    ),
    "spark-classes": CachedProgram(
        (_spark_and_java(), "tests/pipeline/spark_classes.py"),
        ("java",),
        _spark_classes,
    ),
    "client-node": CachedProgram(
        ("tests/compat/official/node/package*.json",), ("npm",), _client_node
    ),
    "client-go": CachedProgram(("tests/compat/official/go/*",), ("go",), partial(_go_client, "go")),
    "client-classic-go": CachedProgram(
        ("tests/compat/official/classic_go/*",), ("go",), partial(_go_client, "classic_go")
    ),
    "client-java": CachedProgram(
        ("tests/compat/official/java/*",), ("mvn", "javac"), partial(_java_client, "java")
    ),
    "client-classic": CachedProgram(
        ("tests/compat/official/classic/*",), ("mvn", "javac"), partial(_java_client, "classic")
    ),
    "rocketmq": CachedProgram(
        ("bench/peers/rocketmq/*", "bench/peers/java/*", "tests/compat/java/*"),
        ("mvn", "javac"),
        _rocketmq,
    ),
    "etcd": CachedProgram(
        ("bench/peers/etcd/*",), ("go",), partial(_go_peer, "etcd", "etcd", "."), "bench"
    ),
    "nats": CachedProgram(
        ("bench/peers/nats/*",),
        ("go",),
        partial(_go_peer, "nats", "nats-server", "github.com/nats-io/nats-server/v2"),
        "bench",
    ),
    "kafka": CachedProgram(
        ("bench/peers/kafka/*",), ("mvn", "javac"), partial(_java_peer, "kafka"), "bench"
    ),
    "bookkeeper": CachedProgram(
        ("bench/peers/bookkeeper/*", "bench/peers/java/*"),
        ("mvn", "javac"),
        partial(_java_peer, "bookkeeper"),
        "bench",
    ),
}


def cache_directory() -> Path:
    """Return the cache of this user. Raises NotInstalledError for a relative path, which is another
    directory for each caller."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(os.environ.get("QUORUMLOG_CACHE") or Path(home) / "quorumlog")
    if not directory.is_absolute():
        raise NotInstalledError(
            f"QUORUMLOG_CACHE={directory} is not usable",
            "a relative path is another directory for each caller",
            "name it from / on",
        )
    return directory


def place(name: str) -> Path:
    """Return where a part is, or would be, as its pins are now."""
    digest = hashlib.sha256(sysconfig.get_platform().encode())
    for pin in PARTS[name].pins:
        files = sorted(ROOT.glob(pin)) if "/" in pin else []
        for data in [file.read_bytes() for file in files] or [pin.encode()]:
            digest.update(b"%d:" % len(data) + data)
    return cache_directory() / f"{name}-{digest.hexdigest()[:16]}"


def find(name: str) -> Path:
    """Return the directory of a part. Raises NotInstalledError; makes nothing."""
    directory = place(name)
    if not directory.is_dir():
        do = {"gate": "tests/run --setup", "long": "tests/run --setup --all"}
        raise NotInstalledError(
            f"{name} is not installed",
            f"there is no {directory}",
            f"run {do.get(PARTS[name].tier, f'deploy/setup {name}')}",
        )
    return directory


def make(name: str) -> Path:
    """Make a part unless it is there, and return its directory. Raises NotInstalledError."""
    directory = place(name)
    if directory.is_dir():
        return directory
    lacking = [tool for tool in PARTS[name].tools if shutil.which(tool) is None]
    if lacking:
        raise NotInstalledError(
            f"{name} is not installed",
            f"it is made with {' and '.join(lacking)}, which PATH does not have",
            "install that, and run deploy/setup again",
        )
    with _lock():
        if not directory.is_dir():
            made = directory.with_name(directory.name + ".new")
            shutil.rmtree(made, ignore_errors=True)
            sys.stderr.write(f"deploy/setup: making {name}\n")
            try:
                made.mkdir()
                PARTS[name].make(made)
                made.rename(directory)
            except subprocess.CalledProcessError as error:
                said = (error.stderr or error.stdout or "nothing").strip().splitlines()
                reason = next((line for line in said if "error" in line.lower()), said[-1])
                raise NotInstalledError(
                    f"{name} could not be made",
                    f"{error.cmd[0]} ended with {error.returncode}: {reason[:_WORDS_MAX]}",
                    "check that its package index can be reached, and run deploy/setup again",
                ) from error
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return directory


@contextmanager
def _lock() -> Iterator[None]:
    """One program at a time on a machine."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    lock = os.open(cache_directory() / "programs.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
    )
    return done.stdout


def main(arguments: list[str]) -> int:
    """Make the parts that are named, or those of the gate, or all; say what could not be made."""
    is_all = arguments == ["--all"]
    names = [] if is_all else arguments
    if unknown := [name for name in names if name not in PARTS]:
        sys.stderr.write(f"deploy/setup: there is no {unknown[0]}, only {', '.join(PARTS)}\n")
        return 2
    code = 0
    tiers = ("gate", "long") if is_all else ("gate",)
    for name in names or [name for name, part in PARTS.items() if part.tier in tiers]:
        try:
            make(name)
        except NotInstalledError as error:
            sys.stderr.write(f"deploy/setup: {error}\n")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
