"""Starts Spark for a job: embedded by default, quiet, and stopped with its Java process.

Owns the settings that all of our jobs want, and the error when Spark or Java is missing. Must not
know any job. `master` passes through: the same code runs on a cluster.
"""

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
JAVA_VERSION: Final = 17
_LAST_WORDS_BYTES: Final = 2000
_POLL_S: Final = 0.02
_OURS: Final = re.compile(r"^(?:pipeline|store|quorumlog)\.[\w.]+: (.+)$", re.MULTILINE)
"""The last line of a task's traceback if it is an error of ours."""
_process: subprocess.Popen[bytes] | None = None
"""The Java process of this process: PySpark knows one at a time as well."""


class SparkMissingError(PipelineError):
    """Spark, or the Java that it runs on, is not installed or does not start. No work was done."""

    code = "pipeline.no_spark"


class JobFailedError(PipelineError):
    """A task of Spark failed. The job's own documentation says what was done by then."""

    code = "pipeline.job_failed"


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
    """Yield a session, and end it with its Java process, which would otherwise outlive it.

    Raises SparkMissingError, and JobFailedError for an error of Spark inside of the block.
    """
    check_available()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark = start(name, master or LOCAL_MASTER)
        try:
            yield spark
        finally:
            stop(spark)
    except (PySparkException, Py4JError) as error:
        raise _failed(name, str(error)) from error


def _failed(name: str, text: str) -> JobFailedError:
    """Shorten an error of Spark to one line: our own error if a task raised one."""
    ours = _OURS.findall(text)
    what, _, do = ours[-1].rpartition("; ") if ours else ("", "", "")
    first = next((line for line in text.splitlines() if line.strip()), "nothing was said")
    do = do or "run it with --master 'local[1]' to see more"
    return JobFailedError(what or f"{name} failed in Spark: {first.strip()}", do)


def start(name: str, master: str) -> "SparkSession":
    """Start Java and a session in it. Raises SparkMissingError when Java ends at once."""
    from pyspark.sql import SparkSession

    if master.startswith("local"):  # Otherwise it runs the first `python3` on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"quorumlog {name}").master(master)
    settings = _settings(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _java(settings):
        return builder.getOrCreate()


@contextmanager
def _java(settings: dict[str, str]) -> Iterator[None]:
    """Start the process that PySpark finds by two variables of the environment.

    PySpark would start it with Python code between fork and exec, which a process that
    has used gRPC does not survive each time, and let it write on our stderr.
    """
    global _process
    assert _process is None, "one Spark in a process"
    from pyspark.find_spark_home import _find_spark_home

    command = [os.path.join(_find_spark_home(), "bin", "spark-submit")]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as said:
        path = os.path.join(directory, "address")
        environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": path}
        _process = subprocess.Popen(
            [*command, "pyspark-shell"],
            stdin=subprocess.PIPE,  # Java ends when this is closed, as at the end of this process.
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**environment, "SPARK_CONNECT_MODE": "0"},
            start_new_session=True,  # Ctrl-C is for this process.
        )
        while not os.path.exists(path):
            if _process.poll() is not None:
                _end_java()
                said.seek(0)
                words = said.read()[-_LAST_WORDS_BYTES:].decode("utf-8", "replace").strip()
                do = f"check that 'java -version' says {JAVA_VERSION} or newer"
                raise SparkMissingError(f"Spark does not start: {words}", do)
            time.sleep(_POLL_S)
        with open(path, "rb") as file:
            port, size_bytes = struct.unpack(">ii", file.read(8))
            secret = file.read(size_bytes).decode()
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret
    try:
        yield
    except BaseException:
        _end_java()
        raise
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.log.level": "ERROR",
        # Its 15 s are too short for the start of a worker on a machine that is very busy.
        "spark.python.authenticate.socketTimeout": "300s",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            "spark.ui.enabled": "false",
        }
    return settings


def stop(spark: "SparkSession") -> None:
    """End a session and the Java process behind it."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        gateway.shutdown()
    _end_java()


def _end_java() -> None:
    global _process
    process, _process = _process, None
    if process is not None and process.stdin is not None:
        process.stdin.close()
        process.wait()
