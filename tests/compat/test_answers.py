"""A real RocketMQ and a node of ours answer the same questions alike, but for what a page lists."""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

from deploy.local import LocalCluster
from tests import missing
from tests.compat.answers import answers, rocketmq, side, unlike
from tests.compat.official.run import broker_addresses

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "rocketmq-answers.md"
SETTINGS: Final = {
    "file_size_bytes": "16MiB",
    "rocketmq_listen": "127.0.0.1:0",
    "rocketmq_name_count": 1,
}
"""With one broker name, as a broker of RocketMQ has."""


@pytest.mark.long
async def test_answers_differ_where_it_is_listed_and_nowhere_else(tmp_path: Path) -> None:
    missing.installed("rocketmq")
    text = PAGE.read_text("utf-8")
    listed = [": ".join(row) for row in re.findall(r"^\| `(.+?)` \| `(.+?)` \| .+ \|$", text, re.M)]
    (tmp_path / "r").mkdir()
    with LocalCluster.create(tmp_path / "c", 1, settings=SETTINGS) as cluster:
        port = int(broker_addresses(cluster)[0].rpartition(":")[2])
        async with (
            rocketmq(tmp_path / "r", cluster.cluster_id) as (names, broker),
            side(names, broker, cluster.cluster_id) as theirs,
            side(port, port, cluster.cluster_id) as ours,
        ):
            answered, other = await answers(theirs), await answers(ours)
    pairs = {
        f"{name}: {path}": values
        for name, answer in answered.items()
        for path, values in unlike(answer, other[name]).items()
    }
    unlisted = pairs.keys() - {key for key in pairs for row in listed if fnmatch(key, row)}
    assert not {key: pairs[key] for key in unlisted}, f"{PAGE.name} does not list them"
    settled = [row for row in listed if not any(fnmatch(key, row) for key in pairs)]
    assert not settled, f"{PAGE.name} lists what does not differ any more"
    assert not [name for name in answered if name not in " ".join(text.split())]
