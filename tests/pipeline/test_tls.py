"""Tables and jobs of a cluster that speaks TLS and demands certificates of its clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deploy.local import LocalCluster
from pipeline import register
from pipeline.errors import OptionError
from pipeline.options import TLS, sink_options, source_options
from qlog.connection import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from quorumlog import ClientTls, sync
from quorumlog.errors import UnavailableError
from tests.node.peers.certificates import tls_settings
from tests.pipeline.conftest import Run
from tests.pipeline.topics import fill, read, sent

COUNT = 40
Secured = tuple[LocalCluster, sync.Client, ClientTls]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """One node, a client of it, and the files that this client shows."""
    authority, settings = tls_settings(tmp_path)
    mine = authority.files("spark")
    tls = ClientTls(str(authority.path), str(mine.certificate), str(mine.key))
    with (
        LocalCluster.create(tmp_path / "cluster", 1, settings=settings) as cluster,
        sync.connect(
            cluster.bootstrap,
            timeout_ms=60_000,
            connect_timeout_ms=60_000,
            credentials=tls.credentials(),
        ) as client,
    ):
        for topic in ("orders", "copy", "again"):
            client.admin.create_topic(topic, queue_count=4)
        fill(client, "orders", 0, COUNT)
        yield cluster, client, tls


@pytest.mark.long
def test_a_table_of_such_a_cluster_is_read_and_written(
    spark: SparkSession, secured: Secured
) -> None:
    cluster, client, tls = secured
    register(spark)
    given = {"servers": cluster.bootstrap, **dict(zip(TLS, tls, strict=True))}
    rows = spark.read.format("quorumlog").options(topic="orders", **given).load()
    assert rows.count() == COUNT
    kept = rows.select("queue_id", "body", "properties")
    kept.write.format("quorumlog").mode("append").options(topic="copy", **given).save()
    assert sent(read(client, "copy")) == sent(read(client, "orders"))


@pytest.mark.long
def test_jobs_take_the_files_that_qlog_takes(
    run: Run, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, client, tls = secured
    for name, path in zip((CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE), tls, strict=True):
        monkeypatch.setenv(name, path)
    at, table = ("--server", cluster.bootstrap), str(tmp_path / "table")
    assert run.json("ingest", "orders", "--to", table, *at)["row_count"] == COUNT
    assert run.json("replay", "copy", "--path", table, *at)["row_count"] == COUNT
    assert run.json("replay", "again", "--topic", "orders", *at)["row_count"] == COUNT
    assert sent(read(client, "copy")) == sent(read(client, "again")) == sent(read(client, "orders"))
    rates = run.json("latency", "--topic", "orders", *at)["rates"]
    assert sum(rate["message_count"] for rate in rates) == COUNT
    monkeypatch.setenv(CA_VARIABLE, str(tmp_path / "none.pem"))
    refused = run("latency", "--topic", "orders", *at)
    assert refused.exit_code == 3
    assert "none.pem cannot be read" in refused.stderr


@pytest.mark.long
def test_a_stranger_is_refused(spark: SparkSession, secured: Secured) -> None:
    cluster, _, tls = secured
    register(spark)
    given = {"servers": cluster.bootstrap, "topic": "orders", "tlsCaFile": tls.ca}
    with pytest.raises(Exception, match=UnavailableError.__name__):
        spark.read.format("quorumlog").options(**given, timeoutMs="1000").load().count()


@pytest.mark.parametrize("alone", TLS[1:])
def test_a_certificate_and_its_key_go_together(alone: str) -> None:
    given = {"servers": "host:1", "topic": "orders", alone: "file.pem"}
    for parse in (source_options, sink_options):
        with pytest.raises(OptionError, match=f"only one of {TLS[1]!r} and {TLS[2]!r}"):
            parse(given)
