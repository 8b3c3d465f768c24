"""`qlog events`: what the logs of all nodes say, in one list."""

from tests.patience import wait_for
from tests.qlog.running import Qlog


def test_an_election_is_an_event_of_each_node(qlog: Qlog) -> None:
    leader = qlog.json("cluster", "transfer-leader")["leader_id"]

    def told() -> set[int]:
        rows = qlog.json("events", "--last", 1_000)
        assert [row["unix_ms"] for row in rows] == sorted(row["unix_ms"] for row in rows)
        return {
            row["node_id"]
            for row in rows
            if (row["component"], row["text"], row["values"].get("leader"))
            == ("node", "role", leader)
        }

    wait_for("all nodes tell", lambda: told() == set(qlog.nodes.node_ids))
    newest = qlog.json("events", "--node", leader, "--last", 1)
    assert newest[0]["node_id"] == leader
    assert qlog("events", "--last", 0).stdout == ""
    since = ("events", "--last", 1, "--since")
    assert (qlog.json(*since, "0s"), qlog.json(*since, "1d")[0]["text"] != "") == ([], True)
    assert all(row["level"] != "info" for row in qlog.json("events", "--level", "warning"))
    assert "role" in qlog("events", "--node", leader, "--last", 1_000).stdout
