"""Starts Spark for a job: embedded unless told otherwise, quiet, and ended for good.

Owns the settings that every job of ours wants, and what is said when Spark or Java is not there.
Must not know any job. `master` passes through: the same code runs on a cluster.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
JAVA_VERSION: Final = 17
_LAST_WORDS_BYTES: Final = 2000


class SparkMissingError(Exception):
    """Spark, or the Java that it runs on, is not installed or does not start. Nothing was done."""

    code, retryable, outcome = "pipeline.no_spark", False, None

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what, do)
        self.what, self.do = what, do

    def __str__(self) -> str:
        return f"{self.what}; {self.do}"


def check_available() -> None:
    """Raise SparkMissingError before anything is read, rather than in the middle of Spark."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        what = "pipeline jobs need PySpark, which is not installed"
        raise SparkMissingError(what, "run: pip install 'quorumlog[spark]'") from error
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    if shutil.which(java) is None:
        what = f"Spark needs Java {JAVA_VERSION} or newer, and there is no {java!r}"
        package = f"openjdk-{JAVA_VERSION}-jre-headless"
        do = f"install it (Debian: apt install {package}), or set JAVA_HOME"
        raise SparkMissingError(what, do)


@contextmanager
def spark_session(name: str, master: str | None = None) -> "Iterator[SparkSession]":
    """Give a session, and end it with its Java process, which would else outlive it.

    Raises SparkMissingError.
    """
    check_available()
    spark = start(name, master or LOCAL_MASTER)
    try:
        yield spark
    finally:
        stop(spark)


def start(name: str, master: str) -> "SparkSession":
    """Start a session. What Java has to say on stderr is kept for the case that it fails."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if master.startswith("local"):  # Else it runs whatever `python3` is first on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"quorumlog {name}").master(master)
    for key, value in _settings(master).items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as said, _stderr_into(said):
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            said.seek(0)
            words = said.read()[-_LAST_WORDS_BYTES:].decode("utf-8", "replace").strip()
            what = f"Spark does not start: {words or error}"
            do = f"check that 'java -version' says {JAVA_VERSION} or newer"
            raise SparkMissingError(what, do) from error


@contextmanager
def _stderr_into(file: IO[bytes]) -> Iterator[None]:
    """Let new processes write what belongs to stderr into a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        cores = str(os.cpu_count() or 1)
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": cores,
            "spark.ui.enabled": "false",
        }
    return settings


def stop(spark: "SparkSession") -> None:
    """End a session and the Java process behind it."""
    from pyspark import SparkContext

    spark.stop()
    # PySpark keeps the process for the next session, to the end of ours.
    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    process = getattr(gateway, "proc", None)
    if gateway is not None:
        gateway.shutdown()
    if process is not None:
        process.stdin.close()
        process.wait()
