"""Hosts with addresses of their own, clients beside them, and the links between all of them.

Owns the addresses, the names, and the meaning of a partition. A host is a network namespace with
one device; the clients are this process, whose namespace has one as well. A second device of it is
the console: its links are never touched, so that the state of a node is known while everything is
cut. Must not know nodes. Only inside of `namespaces.enter`.
"""

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from chaos.errors import ChaosError, NotPossibleHereError

from hosts.fabric.conditions import PERFECT, FrameCounts, LinkCondition
from hosts.namespaces import COMMAND_TIMEOUT_S, RunPlace, command

CLIENTS: Final = 0
"""Number of the clients among the hosts, which count from 1."""
HOST_COUNT_MAX: Final = 9
_NETWORK: Final = "10.77.0"
_CONSOLE_NETWORK: Final = "10.78.0"
_CLIENTS_LAST: Final = 100
_DEVICE: Final = "eth0"
_CONSOLE_DEVICE: Final = "console0"
_MOVED: Final = 100
"""Distance of a host's other address from its first one."""
Pair = tuple[int, int]


@dataclass(slots=True)
class Host:
    """One host as it is reached now."""

    number: int
    last: int
    """Last number of its address; of the console's network, `number` is the last one for ever."""
    device: int
    """Last number of the hardware address of its device."""
    file: Path
    """The namespace."""
    clock_offset_s: int = 0
    """Seconds that its clock of elapsed time is ahead of this machine's."""

    @property
    def name(self) -> str:
        """Name that nodes and clients resolve."""
        return f"host-{self.number}"

    @property
    def console_name(self) -> str:
        """Name by which the console reaches it."""
        return f"console-{self.number}"

    @property
    def address(self) -> str:
        """Address of IP."""
        return f"{_NETWORK}.{self.last}"

    @property
    def hardware_address(self) -> str:
        """Hardware address of its device."""
        return f"02:00:00:00:00:{self.device:02x}"

    @property
    def launcher(self) -> tuple[str, ...]:
        """Words before a command that have it run on the host, with its clock."""
        inside = ("nsenter", f"--net={self.file}", "--")
        if not self.clock_offset_s:
            return inside
        offset = str(self.clock_offset_s)
        return (*inside, "unshare", "--time", "--monotonic", offset, "--boottime", offset, "--")


class HostNetwork:
    """Hosts 1 to `count` and the clients, joined by a switch. In a `with` it is there."""

    def __init__(
        self, place: RunPlace, count: int, seed: int, clock_offsets_s: Iterable[int] = ()
    ) -> None:
        assert 1 <= count <= HOST_COUNT_MAX, f"{count} hosts"
        self._place, self._seed = place, seed
        offsets = (*clock_offsets_s, *([0] * count))
        self.hosts: Final = {
            n: Host(n, n, n, place.directory / f"net-{n}", offsets[n - 1])
            for n in range(1, count + 1)
        }
        self._clients_last = _CLIENTS_LAST
        self._conditions: dict[Pair, LinkCondition] = {}
        self._machine_names = place.hosts_file.read_text("utf-8")
        self._switch: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self._name_hosts, ())
            self._switch = stack.enter_context(self._running_switch())
            self._set_up_clients()
            for host in self.hosts.values():
                host.file.touch()
                command("unshare", f"--net={host.file}", "true")
                stack.callback(self._remove, host)
                device = ("ip", "link", "set", f"tap-{host.number}", "netns", str(host.file))
                command(*device, "name", _DEVICE)
                quiet = ("addrgenmode", "none", "address", host.hardware_address)
                self._inside(host, "ip", "link", "set", _DEVICE, *quiet)
                self._set_up(host)
            self._name_hosts(self.hosts.values())
            # Before the hosts: their devices go with them.
            stack.callback(_end, self._switch)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._switch = None

    # --- Links ---

    def pairs(self, hosts: Iterable[int], others: Iterable[int]) -> list[Pair]:
        """Return the directions between two sets of hosts, both ways."""
        left, right = tuple(hosts), tuple(others)
        between = [(a, b) for a in left for b in right if a != b]
        return [*between, *((b, a) for a, b in between)]

    def all_pairs(self, *, with_clients: bool) -> list[Pair]:
        """Return all directions between hosts, and those of clients if asked for."""
        numbers = [*self.hosts, CLIENTS] if with_clients else list(self.hosts)
        return [(a, b) for a in numbers for b in numbers if a != b]

    def around(self, number: int, *, with_clients: bool) -> list[Pair]:
        """Return the directions from and to one host."""
        return [p for p in self.all_pairs(with_clients=with_clients) if number in p]

    def set(self, pairs: Iterable[Pair], condition: LinkCondition) -> None:
        """Give these directions a condition, all at one moment."""
        chosen = list(pairs)
        self._conditions |= dict.fromkeys(chosen, condition)
        document = asdict(condition)
        self._ask({"set": [[source, target, document] for source, target in chosen]})

    def heal(self) -> None:
        """Make all links perfect."""
        changed = [pair for pair, one in self._conditions.items() if one is not PERFECT]
        self.set(changed, PERFECT)

    def counts(self, pairs: Iterable[Pair]) -> FrameCounts:
        """Return the frames of these directions so far, together."""
        chosen, total = set(pairs), FrameCounts()
        for source, target, counts in self._ask({"counts": True}):
            if (source, target) in chosen:
                for name, count in counts.items():
                    setattr(total, name, getattr(total, name) + count)
        return total

    # --- Addresses ---

    def move(self, number: int) -> str:
        """Give a host another address, and its name to that; return it. The old one is gone."""
        host = self.hosts[number]
        host.last = _other(host.last)
        self._inside(host, "ip", "addr", "flush", "dev", _DEVICE)
        self._set_up(host)
        self._name_hosts(self.hosts.values())
        return host.address

    def move_clients(self) -> str:
        """Give the clients another address; return it. What is sent to the old one is lost, so
        their connections are dead, and neither end hears of it."""
        self._clients_last = _other(self._clients_last)
        address = f"{_NETWORK}.{self._clients_last}"
        command("ip", "addr", "flush", "dev", _DEVICE)
        command("ip", "addr", "add", f"{address}/24", "dev", _DEVICE)
        return address

    def replace_device(self, number: int) -> str:
        """Give a host another hardware address at the same address; return it. Others have to find
        out (ARP)."""
        host = self.hosts[number]
        host.device = _other(host.device)
        self._inside(host, "ip", "link", "set", _DEVICE, "down")
        self._inside(host, "ip", "link", "set", _DEVICE, "address", host.hardware_address)
        self._inside(host, "ip", "link", "set", _DEVICE, "up")
        # The console knows it at once: it looks on, and has no faults.
        command("ip", "neigh", "flush", "dev", _CONSOLE_DEVICE)
        return host.hardware_address

    # --- Parts ---

    @contextlib.contextmanager
    def _running_switch(self) -> Iterator["subprocess.Popen[bytes]"]:
        # In the order of numbers: the port of a host is its number, and CLIENTS that of clients.
        devices = ["clients", *(f"tap-{number}" for number in self.hosts), _CONSOLE_DEVICE]
        words = [sys.executable, "-P", "-m", "hosts.fabric.switch", str(self._seed), *devices]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as switch:
            try:
                self._switch = switch
                if "ready" not in self._answer():
                    raise NotPossibleHereError("the switch did not say that it is ready")
                yield switch
            finally:
                switch.kill()

    def _set_up_clients(self) -> None:
        lines = [
            "link set lo up",
            f"link set clients addrgenmode none name {_DEVICE}",
            f"addr add {_NETWORK}.{_CLIENTS_LAST}/24 dev {_DEVICE}",
            f"link set {_DEVICE} up",
            f"link set {_CONSOLE_DEVICE} addrgenmode none",
            f"addr add {_CONSOLE_NETWORK}.{_CLIENTS_LAST}/24 dev {_CONSOLE_DEVICE}",
            f"link set {_CONSOLE_DEVICE} up",
        ]
        # Otherwise either device answers for the address of the other one.
        for name, value in (("arp_ignore", 1), ("arp_announce", 2)):
            Path(f"/proc/sys/net/ipv4/conf/all/{name}").write_text(f"{value}\n", "ascii")
        command("ip", "-batch", "-", text="\n".join([*lines, ""]))

    def _set_up(self, host: Host) -> None:
        lines = [
            "link set lo up",
            f"addr add {host.address}/24 dev {_DEVICE}",
            f"addr add {_CONSOLE_NETWORK}.{host.number}/24 dev {_DEVICE}",
            f"link set {_DEVICE} up",
        ]
        self._inside(host, "ip", "-batch", "-", text="\n".join([*lines, ""]))

    def _inside(self, host: Host, *words: str, text: str = "") -> str:
        return command("nsenter", f"--net={host.file}", "--", *words, text=text)

    def _remove(self, host: Host) -> None:
        command("umount", str(host.file))
        host.file.unlink()

    def _name_hosts(self, hosts: Iterable[Host]) -> None:
        """Write the names of hosts for all processes of the run."""
        lines = [
            f"{h.address} {h.name}\n{_CONSOLE_NETWORK}.{h.number} {h.console_name}\n" for h in hosts
        ]
        # In place: the file is bound over another one.
        with self._place.hosts_file.open("r+", encoding="utf-8") as file:
            file.write("".join([self._machine_names, "\n", *lines]))
            file.truncate()

    def _ask(self, request: dict[str, object]) -> list[tuple[int, int, dict[str, int]]]:
        """Have the switch do what a request says, and return the counts it was asked for."""
        assert self._switch is not None, "no switch runs"
        requests = self._switch.stdin
        assert requests is not None, "the switch was started without a pipe"
        requests.write(json.dumps(request).encode() + b"\n")
        requests.flush()
        return [(pair[0], pair[1], counts) for *pair, counts in self._answer().get("counts", ())]

    def _answer(self) -> dict[str, Any]:
        assert self._switch is not None, "no switch runs"
        answers = self._switch.stdout
        assert answers is not None, "the switch was started without a pipe"
        if not select.select([answers], [], [], COMMAND_TIMEOUT_S)[0]:
            why = f"no answer in {COMMAND_TIMEOUT_S} s"
            raise ChaosError("the switch", why, "see whether this machine is overloaded")
        line = answers.readline()
        if not line:
            raise ChaosError("the switch", "it has ended", "its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(COMMAND_TIMEOUT_S)


def _other(last: int) -> int:
    """Return the other last number of an address that has two."""
    return last - _MOVED if last > _MOVED else last + _MOVED
