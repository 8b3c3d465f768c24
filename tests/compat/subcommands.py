"""Every subcommand of RocketMQ's tool against a cluster: what it does, as a table.

`python -m tests.compat.subcommands` starts three nodes, a producer and a consumer of RocketMQ, runs
all subcommands of the newest two versions of the tool, and prints docs/rocketmq-tools.md. A row
says what the tool itself printed. It ends with 1 if a subcommand printed neither what it should
nor a reason of ours.
"""

import base64
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy.cache import place
from deploy.local import LocalCluster
from quorumlog.sync import connect
from store.record.message import message_id
from tests.compat.official.clients import Official, pinned
from tests.compat.official.run import SEND_S, Program, broker_addresses, prepare
from tests.java import SHORT_LIVED

LATE_MS: Final = 20_000
COUNT: Final = 140
TOPIC, GROUP = "tools-ordinary", "tools-push"
_NONE: Final = "not applicable"
WORDS: Final = {
    # Name: its words, and what it prints when it works. {...} are those of `_places`.
    "clusterList": ("", r"g0-n1"),
    "updateTopic": ("-c {cluster} -t made -r 2 -w 2", r"create topic to .* success"),
    "updateTopicList": ("-c {cluster} -f {topics}", r"success"),
    "topicList": ("", r"\bmade\b"),
    "topicClusterList": ("-t made", r"{cluster}"),
    "topicRoute": ("-t made", r"g0-n1"),
    "topicStatus": ("-t {topic}", r"g0-n1 "),
    "updateTopicPerm": ("-t made -p 4 -c {cluster}", r"success"),
    "updateOrderConf": ("-t made -m put -v g0-n1:2", r"success"),
    "allocateMQ": ("-t made -i 10.0.0.1,10.0.0.2", r"10\.0\.0\.2"),
    "updateSubGroup": ("-c {cluster} -g made", r"success"),
    "updateSubGroupList": ("-c {cluster} -f {groups}", r"success"),
    "setConsumeMode": ("-c {cluster} -t made -g made -m POP", r"success"),
    "getConsumerConfig": ("-g made", r"groupName"),
    "consumerProgress": ("-g {group}", r"Consume Diff Total"),
    "consumerConnection": ("-g {group}", r"ConsumeType"),
    "consumerStatus": (
        "-g {group}",
        r"STATUS|ConsumeRunningInfo|subscription",
    ),
    "producerConnection": ("-g tools-producers -t {topic}", r"JAVA"),
    "producer": ("-b {broker}", r"tools-producers"),
    "sendMessage": ("-t made2 -p hello -k key1 -c tag1", r"SEND_OK"),
    "queryMsgByKey": ("-t {topic} -k key2", r"[0-9A-F]{{32}}"),
    "queryMsgByOffset": ("-t {topic} -b g0-n1 -i 0 -o 0", r"OffsetID|Offset ID"),
    "queryMsgByUniqueKey": ("-t {topic} -i {unique}", r"{unique}|Reconsume"),
    "queryMsgById": ("-t {topic} -i {id}", r"Message ID|MSGID|OffsetID"),
    "queryMsgTraceById": ("-i {unique}", r"SendGroup|Pub"),
    "printMsg": ("-t {topic} -d false", r"MSGID"),
    "printMsgByQueue": ("-t {topic} -a g0-n1 -i 0 -p true", r"MSGID"),
    "consumeMessage": ("-t {topic} -b g0-n1 -i 0 -o 0 -c 1", r"MSGID|Consume ok"),
    "queryCq": ("-t {topic} -q 0 -i 0 -b {broker}", r"physicOffset|idx"),
    "sendMsgStatus": ("-b g0-n1 -c 3", r"SEND_OK"),
    "checkMsgSendRT": ("-t {topic} -a 3 -s 10", r"Send Result|true"),
    "clusterRT": ("-a 3 -s 10 -c {cluster}", r"g0-n1"),
    "brokerStatus": ("-b {broker}", r"brokerVersionDesc"),
    "brokerConsumeStats": ("-b {broker}", r"{group}"),
    "statsAll": ("-t {topic}", r"{topic}"),
    "haStatus": ("-b {broker}", r"(?i)master|role"),
    "resetOffsetByTime": ("-g made -t {topic} -s -1", r"g0-n1"),
    "skipAccumulatedMessage": ("-g made -t {topic}", r"g0-n1"),
    "cloneGroupOffset": ("-s made -d made4 -t {topic}", r"success"),
    "wipeWritePerm": ("-b g0-n2", r"OK"),
    "addWritePerm": ("-b g0-n2", r"OK"),
    "updateKvConfig": ("-s texts -k one -v two", r"success"),
    "deleteKvConfig": ("-s texts -k one", r"success"),
    "getNamesrvConfig": ("", r"rpc_count_max"),
    "getBrokerConfig": ("-b {broker}", r"rpc_count_max"),
    "updateBrokerConfig": ("-b {broker} -k one -v two", r"success"),
    "updateNamesrvConfig": ("-k one -v two", r"success"),
    "cleanUnusedTopic": ("-b {broker}", r"success"),
    "cleanExpiredCQ": ("-b {broker}", r"success"),
    "deleteExpiredCommitLog": ("-b {broker}", r"success"),
    "exportMetadata": ("-c {cluster} -f {home}", r"success"),
    "exportConfigs": ("-c {cluster} -f {home}", r"success"),
    "exportMetrics": ("-c {cluster} -f {home}", r"success"),
    "deleteTopic": ("-c {cluster} -t made", r"success"),
    "deleteSubGroup": ("-c {cluster} -g made", r"success"),
    "updateStaticTopic": ("-t static -qn 2 -c {cluster}", r"success"),
    "remappingStaticTopic": ("", _NONE),
    "resetMasterFlushOffset": ("-b {broker} -o 0", r"success"),
    "setCommitLogReadAheadMode": ("-b {broker} -m 0", r"success"),
    "getColdDataFlowCtrInfo": ("-b {broker}", r"runtimeTable"),
    "updateColdDataFlowCtrGroupConfig": ("-b {broker} -g made -v 1", r"success"),
    "removeColdDataFlowCtrGroupConfig": ("-b {broker} -g made", r"success"),
    "exportPopRecord": ("-c {cluster} -d true", r"(?i)success"),
    "getSyncStateSet": ("-a {broker} -b g0-n1", r"InSyncReplicas"),
    "getBrokerEpoch": ("-b g0-n1", r"Epoch"),
    "getControllerMetaData": ("-a {broker}", r"ControllerLeaderId"),
    "getControllerConfig": ("-a {broker}", r"="),
    "updateControllerConfig": ("-a {broker} -k one -v two", r"success"),
    "electMaster": ("-a {broker} -b 1 -bn g0-n1 -c {cluster}", r"success"),
    "cleanBrokerMetadata": ("-a {broker} -bn g0-n1 -c {cluster}", r"success"),
    "addBroker": ("-c {broker} -b conf", r"success"),
    "removeBroker": ("-c {broker} -b {cluster}:g0-n1:1", r"success"),
    "createUser": ("-b {broker} -u u1 -p p1 -t Normal", r"success"),
    "updateUser": ("-b {broker} -u u1 -p p2", r"success"),
    "getUser": ("-b {broker} -u u1", r"u1"),
    "listUser": ("-b {broker}", r"u1"),
    "copyUser": ("-f {broker} -t {broker} -u u1", r"success"),
    "deleteUser": ("-b {broker} -u u1", r"success"),
    "createAcl": ("-b {broker} -s User:u1 -r Topic:t -a Pub -d Allow", r"success"),
    "updateAcl": ("-b {broker} -s User:u1 -r Topic:t -a Sub -d Allow", r"success"),
    "getAcl": ("-b {broker} -s User:u1", r"u1"),
    "listAcl": ("-b {broker}", r"u1"),
    "copyAcl": ("-f {broker} -t {broker} -s User:u1", r"success"),
    "deleteAcl": ("-b {broker} -s User:u1", r"success"),
    "checkRocksdbCqWriteProgress": ("-c {cluster}", r"success"),
    "switchTimerEngine": ("-b {broker} -e F", r"success"),
    "getBrokerLiteInfo": ("-b {broker}", r"Info"),
    "getParentTopicInfo": ("-p {topic}", r"Info"),
    "getLiteTopicInfo": ("-p {topic} -l l1", r"Info"),
    "getLiteClientInfo": ("-p {topic} -g made -c c1", r"Info"),
    "getLiteGroupInfo": ("-p {topic} -g made", r"Info"),
    "triggerLiteDispatch": ("-b g0-n1 -p {topic} -g made", r"Info"),
    "startMonitoring": ("", _NONE),
    "exportMetadataInRocksDB": ("", _NONE),
    "rocksDBConfigToJson": ("", _NONE),
    "dumpCompactionLog": ("", _NONE),
}
_WHY: Final = {
    "remappingStaticTopic": "changes what updateStaticTopic made",
    "startMonitoring": "it runs until it is stopped, and asks what the rows above ask",
    "exportMetadataInRocksDB": "reads files of a RocketMQ broker",
    "rocksDBConfigToJson": "reads files of a RocketMQ broker",
    "dumpCompactionLog": "reads files of a RocketMQ broker",
}
_REFUSAL: Final = re.compile(r"CODE: (\d+) +DESC: (.+?)(?:\n|For more information|BROKER: |$)")


_Row = tuple[str, str, str, bool]
"""Name, what it did, why, and whether that is as it should be."""


def _row(name: str, said: str, is_late: bool, expected: str) -> tuple[str, str, bool]:
    """Return what a subcommand did, why, and whether that is as it should be."""
    if name in _WHY:
        return _NONE, _WHY[name], True
    if "not exist." in said and said.startswith("The sub command"):
        return "is not there", "", True
    refused = _REFUSAL.search(said)
    if refused is not None:
        return "refused", f"{refused[2].strip()} (code {refused[1]})", True
    if re.search(expected, said) and "Exception" not in said:
        return "works", "", True
    last = [line.strip() for line in said.splitlines() if line.strip()][:1]
    return "late" if is_late else "fails", " ".join(last)[:160], False


def _said(tool: Official, home: Path, lines: list[list[str]]) -> Iterator[tuple[str, bool]]:
    """Yield what each subcommand printed, and whether it was late."""
    at = place(tool.part) / tool.version
    (home / "conf").mkdir(exist_ok=True)
    homes = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}")
    words = ["java", *SHORT_LIVED, *homes, "-cp", f"{at}/classes:{at}/lib/*", "Subcommands"]
    left = ["\t".join(line) + "\n" for line in lines]
    while left:
        done = subprocess.run(
            [*words, str(LATE_MS)],
            input="".join(left),
            capture_output=True,
            text=True,
            check=False,
            cwd=home,  # Some write files where they run.
        )
        output = done.stdout.splitlines()
        assert output, done.stderr
        for line in output:
            said = base64.b64decode(line.removeprefix("late ")).decode("utf-8", "replace")
            yield said, line.startswith("late ")
        left = left[len(output) :]  # One that ended the process was the last.


def _run(tool: Official, places: Mapping[str, str], servers: str) -> list[_Row]:
    lines = [
        [name, "-n", servers, *words.format(**places).split()]
        if name not in _WHY
        else ["help", name]
        for name, (words, _) in WORDS.items()
    ]
    said = _said(tool, Path(places["home"]), lines)
    return [
        (name, *_row(name, text, is_late, expected.format(**places)))
        for (name, (_, expected)), (text, is_late) in zip(WORDS.items(), said, strict=True)
    ]


def _places(home: Path, addresses: list[str], bootstrap: str) -> dict[str, str]:
    """Return what stands for the names in braces."""
    with connect(bootstrap) as client:
        cluster = client.admin.cluster_status().cluster_id
        message = next(iter(client.pull_consumer(TOPIC, until="end")))
    host, _, port = addresses[0].rpartition(":")
    (home / "topics").write_text('[{"topicName":"listed","readQueueNums":1,"writeQueueNums":1}]')
    (home / "groups").write_text('[{"groupName":"listed"}]')
    return {
        "cluster": cluster,
        "broker": addresses[0],
        "topic": TOPIC,
        "group": GROUP,
        "home": str(home),
        "topics": str(home / "topics"),
        "groups": str(home / "groups"),
        "unique": message.properties["UNIQ_KEY"],
        "id": message_id((host, int(port)), message.log_position),
    }


def _print(rows: Mapping[Official, list[_Row]]) -> int:
    tools = [tool.version for tool in rows]
    out = [
        "# Subcommands of RocketMQ's tool",
        "",
        "Made by `python -m tests.compat.subcommands`: three nodes, a producer and a consumer of",
        f"RocketMQ, and every subcommand of mqadmin {' and '.join(tools)}. A refusal says why.",
        "",
        f"| subcommand | {' | '.join(tools)} | |",
        f"|---|{'---|' * len(tools)}---|",
    ]
    for found in zip(*rows.values(), strict=True):
        done = " | ".join(row[1] for row in found)
        why = "; ".join(dict.fromkeys(row[2] for row in found if row[2]))
        out.append(f"| `{found[0][0]}` | {done} | {why.replace('|', '/')} |")
    wrong = [row[0] for found in rows.values() for row in found if not row[3]]
    sys.stdout.write("\n".join(out) + "\n")
    for name in dict.fromkeys(wrong):
        sys.stderr.write(f"{name} does neither what it should nor says why\n")
    return bool(wrong)


def main() -> int:
    """Print the page; return the code of the process."""
    tools = [client for client in pinned() if client.is_classic_java][-2:]
    settings = {"rocketmq_listen": "127.0.0.1:0", "rocketmq_auto_topics": True}
    with tempfile.TemporaryDirectory() as root:
        home = Path(root)
        with LocalCluster.create(home / "c", settings=settings) as cluster:
            addresses = broker_addresses(cluster)
            servers = ";".join(addresses)
            prepare(cluster, "tools")
            with (
                Program(
                    tools[-1], home / "consumer", "consume", servers, "tools", str(COUNT)
                ) as reader,
                Program(
                    tools[-1], home / "producer", "produce", servers, "tools", str(COUNT)
                ) as sender,
            ):
                sender.wait_for(lambda event: event["event"] == "done", SEND_S)
                reader.wait_for(lambda event: event["event"] == "received", SEND_S)
                places = _places(home, addresses, cluster.bootstrap)
                rows = {tool: _run(tool, places, servers) for tool in tools}
    return _print(rows)


if __name__ == "__main__":
    sys.exit(main())
