"""RocketMQ's own tool, mqadmin, against a cluster: what it prints is right."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.cache import place
from deploy.local import LocalCluster
from store.record.message import message_id
from tests import missing
from tests.compat import subcommands
from tests.compat.official.clients import pinned
from tests.compat.official.run import broker_addresses
from tests.java import SHORT_LIVED

TOOLS = [client for client in pinned() if client.is_classic_java][-2:]
"""The newest two versions: they write and read JSON by unlike libraries."""
MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
CALL_S = 120
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    missing.installed(TOOLS[0].part)
    settings = {
        "file_size_bytes": "16MiB",
        "rocketmq_listen": "127.0.0.1:0",
        "rocketmq_auto_topics": True,
    }
    root = tmp_path_factory.mktemp("mqadmin")
    with LocalCluster.create(root / "c", settings=settings) as cluster:
        yield broker_addresses(cluster)


@pytest.fixture(params=TOOLS, ids=lambda client: client.version)
def tool(addresses: list[str], tmp_path: Path, request: pytest.FixtureRequest) -> Tool:
    (tmp_path / "conf").mkdir()
    jars = place(request.param.part) / request.param.version / "lib"

    def run(name: str, *arguments: str) -> str:
        """Run a command of the tool; return what it printed, without its own log lines."""
        homes = (f"-Drocketmq.home.dir={tmp_path}", f"-Duser.home={tmp_path}")
        command = ["java", *SHORT_LIVED, *homes, "-cp", f"{jars}/*", MAIN]
        command += [name, "-n", ";".join(addresses), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=True)
        assert "Exception" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout

    return run


def rows(text: str) -> list[list[str]]:
    """Return the lines of a table below its head, cut at blanks."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.long
def test_the_tool_administers_sends_and_finds(addresses: list[str], tool: Tool) -> None:
    lines = rows(tool("clusterList"))
    assert [line[1] for line in lines] == ["g0-n1", "g0-n2", "g0-n3"]
    assert {line[3] for line in lines} == set(addresses)
    cluster = lines[0][0]

    made = tool("updateTopic", "-c", cluster, "-t", "tools", "-r", "2", "-w", "2")
    assert made.count("success") == 3
    assert "tools" in tool("topicList").split()
    assert tool("updateSubGroup", "-c", cluster, "-g", "readers").count("success") == 3

    (sent,) = rows(tool("sendMessage", "-t", "tools", "-p", "hello", "-k", "key1", "-c", "tag1"))
    assert sent[2] == "SEND_OK"
    assert sent[3] in tool("queryMsgByKey", "-t", "tools", "-k", "key1")
    shown = tool("queryMsgByUniqueKey", "-t", "tools", "-i", sent[3])
    assert "tag1" in shown
    (offset,) = re.findall(r"CommitLog Offset: +([0-9]+)", shown)
    host, _, port = addresses[0].rpartition(":")
    offset_id = message_id((host, int(port)), int(offset))
    assert "tag1" in tool("queryMsgById", "-t", "tools", "-i", offset_id)
    assert "hello" in tool("printMsg", "-t", "tools", "-d", "true")

    status = [line for line in rows(tool("topicStatus", "-t", "tools")) if line[0].startswith("g0")]
    assert len(status) == 6
    assert sum(int(line[3]) - int(line[2]) for line in status) == 1
    moved = tool("resetOffsetByTime", "-g", "readers", "-t", "tools", "-s", "-1")
    assert sum(line[0].startswith("g0") for line in rows(moved)) == 6
    progress = tool("consumerProgress", "-g", "readers")
    assert sum(line[0] == "tools" for line in rows(progress)) == 6

    (counted,) = [line for line in rows(tool("statsAll")) if line[0] == "tools"]
    assert counted[:2] + counted[-2:-1] == ["tools", "readers", "1"]
    assert "SubCommandException" not in tool("brokerConsumeStats", "-b", addresses[0])
    units = [tool("queryCq", "-b", one, "-t", "tools", "-q", "0", "-i", "0") for one in addresses]
    units += [tool("queryCq", "-b", one, "-t", "tools", "-q", "1", "-i", "0") for one in addresses]
    assert sum(text.count("physicOffset=") for text in units) == 1
    copies = tool("haStatus", "-c", cluster)
    assert (copies.count("#SlaveAckOffset"), copies.count("#LastReadTime")) == (1, 2)
    assert "success" in tool("cleanUnusedTopic", "-c", cluster)
    tool("cloneGroupOffset", "-s", "readers", "-d", "others", "-t", "tools")
    assert sum(line[0] == "tools" for line in rows(tool("consumerProgress", "-g", "others"))) == 6

    assert "OK" in tool("wipeWritePerm", "-b", "g0-n2")
    assert "OK" in tool("addWritePerm", "-b", "g0-n2")
    assert "brokerVersionDesc" in tool("brokerStatus", "-b", addresses[0])
    assert "rpc_count_max" in tool("getBrokerConfig", "-b", addresses[0])
    assert '"brokerName":"g0-n1"' in tool("topicRoute", "-t", "tools").replace(" ", "")

    tool("updateTopic", "-c", cluster, "-t", "tools", "-r", "2", "-w", "2", "-o", "true")
    ordered = tool("updateOrderConf", "-t", "tools", "-m", "get")
    assert all(f"{name}:2" in ordered for name in ("g0-n1", "g0-n2", "g0-n3"))
    assert "success" in tool("updateKvConfig", "-s", "texts", "-k", "one", "-v", "two")
    assert "success" in tool("deleteKvConfig", "-s", "texts", "-k", "one")
    assert "success" in tool("deleteTopic", "-c", cluster, "-t", "tools")
    assert "tools" not in tool("topicList").split()


@pytest.mark.long
def test_the_page_of_all_subcommands_is_what_a_run_says(capsys: pytest.CaptureFixture[str]) -> None:
    missing.installed(TOOLS[0].part)
    assert subcommands.main() == 0, capsys.readouterr().err
    page = Path(__file__).parents[2] / "docs" / "rocketmq-tools.md"
    assert capsys.readouterr().out == page.read_text("utf-8")
