"""The record of the closing run, and the page that is written from it.

    python -m tests.compat.official.records > docs/records/clients.md

Owns both formats; tests/tidy compares the page with the record, and the versions with the pins.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.compat.official.account import KINDS, Account
from tests.compat.official.clients import PAUSE_MS_MAX, Official, pinned

RECORD: Final = Path(__file__).resolve().parent / "recorded.json"
Entry = Mapping[str, Any]
_COLUMNS: Final = ("lost", "leaked", "doubled", "out_of_order", "early", "failed")
_HEAD: Final = """\
# Official clients while a leader is killed

Written by `python -m tests.compat.official.records` from the record of a run; do not edit it.

Each client has a cluster of three nodes (`flush=sync`) of its own, all on one machine. The client
sends the messages of each kind in ten lanes, with 40 sends in flight at a time. When half of the
ordered ones are acknowledged the leader is killed (SIGKILL), and stays dead until all are. Each
lane sends a message again until it is acknowledged; ordered ones of a lane have its message group.
Every seventh transaction is rolled back. Then four groups receive everything: a simple consumer
and a push consumer, each with a group that is set `--orderly` and one that is not. The programs
are in `tests/compat/official`, the versions are what its package files pin.

"""
_FOOT: Final = """
Acknowledged: {kinds}. Lost: acknowledged and not
received, in any of its groups. Leaked: rolled back and received. Twice: deliveries of a
message that the group had; these clients have no sequence numbers, so a send that is repeated after
a lost answer is stored twice. Out of order: an ordered message whose successor the group had
received before, first deliveries compared. Early: delayed messages before their time; the client
for Python cuts it to a whole second. Errors: those that the application got and retried.

Longest pause: between two acknowledgements of one message group. Beside it stand the longest one
before the leader was killed, which shows the speed of the machine, and the load average of a
minute, with the number of cores: above that number the pauses measure the load. On a machine with
nothing else to do the limit is {limit:.0f} s. The client for Node.js cannot read several addresses,
and its producer keeps its first route: its ordered sends to a node that died stand still until that
node is back, so in its run it is started again at once.

The classic clients speak the remoting protocol; the one for Go does not name the broker in its
requests, so its nodes have a port for each broker name. The ordinary messages of those for Java
travel in batches of three and are traced. Their groups are concurrent and orderly push consumers;
those for Java have broadcasting ones and a lite pull consumer, too, and in version 5 one that reads
by pop. The orderly one has to keep the order. The leader is killed twice: it comes back when three
quarters of the ordered messages are acknowledged, and the next leader is killed. An ordered send
names its queue, so its broker name: it stands still until the client reads the route again, which
it does every 30 s.
"""


def write(client: Official, account: Account, *, count: int, load: float) -> None:
    """Record a run in the place of the client's last; `load` is that of the machine at its end."""
    others = {(entry["language"], entry["version"]): entry for entry in recorded()}
    others[client] = {
        "language": client.language,
        "version": client.version,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu_count": os.cpu_count(),
        "load": round(load, 1),
        "count": count,
        **account._asdict(),
    }
    entries = [others[one] for one in pinned() if one in others]
    RECORD.write_text(json.dumps(entries, indent=1) + "\n", "utf-8")


def recorded() -> list[Entry]:
    """Return the last run of each client."""
    entries: list[Entry] = json.loads(RECORD.read_text("utf-8"))
    return entries


def page(entries: Iterable[Entry]) -> str:
    """Return docs/records/clients.md."""
    lines = [
        "| client | acknowledged | lost | leaked | twice | out of order | early | errors "
        "| longest pause | before the kill | load | run |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for client in entries:
        cells = [
            f"{client['language']} {client['version']}",
            " + ".join(f"{client['acked'][kind]:,}" for kind in KINDS),
            *(f"{client[name]:,}" for name in _COLUMNS),
            f"{client['pause_ms'] / 1000:.1f} s",
            f"{client['calm_pause_ms'] / 1000:.1f} s",
            f"{client['load']:.0f} of {client['cpu_count']}",
            client["date"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    foot = _FOOT.format(kinds=", ".join(KINDS), limit=PAUSE_MS_MAX / 1000)
    return _HEAD + "\n".join(lines) + "\n" + foot


if __name__ == "__main__":
    print(page(recorded()), end="")
