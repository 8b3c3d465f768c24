"""Official clients as a user of a prefix: right topics work, others fail with the code that the
documentation of RocketMQ names."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorumlog
from deploy.local import LocalCluster
from tests import missing
from tests.cluster.test_rocketmq_users import put_user
from tests.compat.drivers import CallFailedError, Client
from tests.compat.official.clients import Official, pinned
from tests.compat.test_clients import receive
from tests.java import SHORT_LIVED
from tests.node.rocketmq.guards import SECRET
from tests.node.users_files import ADMIN_TOKEN, user_settings
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.long
JAVA = [one for one in pinned() if one.language in ("Java", "Classic Java")]
REFUSED = {
    # Of a topic without the right, and of a wrong secret.
    "Java": ("ForbiddenException", "UnauthorizedException"),
    "Classic Java": ("CODE: 16", "CODE: 16"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    root = tmp_path_factory.mktemp("users")
    settings = {"file_size_bytes": "16MiB", **user_settings(root / "users")}
    with LocalCluster.create(root / "c", settings=settings) as cluster:
        cluster.wait_ready()
        asyncio.run(prepare(cluster))
        yield cluster


async def prepare(cluster: LocalCluster) -> None:
    await put_user(cluster, "shop", "producer-consumer:shop")
    topics = ["hers", "shop-python", *(f"shop-{number}" for number in range(len(JAVA)))]
    async with quorumlog.connect(cluster.bootstrap, token=ADMIN_TOKEN) as client:
        for topic in topics:
            await client.admin.create_topic(topic, queue_count=2)


def run(client: Official, home: Path, secret: str, *arguments: str) -> dict[str, str]:
    """Run the program of a client; return what it says of each call."""
    library = missing.installed(client.part) / client.version / "lib"
    name = "ClassicUser" if client.is_classic else "OfficialUser"
    program = Path(__file__).parent / "users" / f"{name}.java"
    endpoint, *rest = arguments
    java = ["java", *SHORT_LIVED, f"-Duser.home={home}", "-cp", f"{library}/*", str(program)]
    ran = subprocess.run(
        [*java, endpoint, "shop", secret, *rest],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = (line.partition(" ") for line in ran.stdout.splitlines())
    return {what: outcome for what, _, outcome in lines}


@pytest.mark.parametrize("client", JAVA, ids=lambda client: client.name)
def test_a_client_for_java(client: Official, cluster: LocalCluster, tmp_path: Path) -> None:
    at = cluster.framed_address if client.is_classic else cluster.address
    topic, (forbidden, unknown) = f"shop-{JAVA.index(client)}", REFUSED[client.language]
    said = run(client, tmp_path, SECRET, at(2), topic, topic, "hers")
    assert (said[topic], said["received"]) == ("OK", "OK"), said
    assert forbidden in said["hers"], said
    assert "lacks Pub on Topic:hers" in said["hers"], said
    said = run(client, tmp_path, "another", at(1), topic, topic)
    assert unknown in said[topic], said
    assert said["received"] != "OK", said


def test_the_client_for_python(cluster: LocalCluster, tmp_path: Path) -> None:
    topics = ["shop-python", "hers"]
    with Client("python", cluster.address(3), tmp_path, key="shop", secret=SECRET) as client:
        client.call("producer", topics=topics)
        client.call("send", topic="shop-python", body=b"x")
        with pytest.raises(CallFailedError, match=r"Pub on Topic:hers"):
            client.call("send", topic="hers", body=b"x")
        client.call("simple", group="shop-python", topic="shop-python")
        assert len(receive(client, 1)) == 1
