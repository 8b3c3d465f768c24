"""One broker group: its brokers, its master, its HA epochs and its in-sync set.

Owns the rules by which a report or a decision changes a group. Every rule checks first and changes
then, so a refusal leaves the group as it was. Must not know other groups, replication or a clock:
time comes with each command, and only differences of times count.

Epochs of an HA group (rule C2): a number belongs to the first (master id, nonce) that it was seen
with, and a new number is above every number that any broker has ever reported. The brokers bind
numbers durably themselves, so the numbers here are advice and may be wrong. Numbers rise by bounded
jumps. A group with a number that no broker is near (`is_unfounded`) is forgotten, because the
number would keep all others from being elected.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from pydantic import Field, TypeAdapter

from node.nameserver.directory.fields import (
    BrokerIds,
    CommandRefused,
    CopyCount,
    Name,
    Number,
    Text,
)
from node.nameserver.directory.limits import DirectoryLimits
from node.nameserver.directory.reports import (
    Binding,
    Bindings,
    BrokerReport,
    Kind,
    LogEnd,
    Role,
    TopicQueues,
)
from store.files.meta_file import Json

NO_MASTER: Final = -1


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """The last reported state of one broker."""

    broker_id: Number
    start_ms: Number
    address: Text
    ha_address: Text
    role: Role
    epoch: Number
    log_end: LogEnd
    last_seen_ms: Number

    def is_alive(self, now_ms: int, silence_ms: int) -> bool:
        """Whether the broker was seen in the last `silence_ms`."""
        return now_ms - self.last_seen_ms <= silence_ms


@dataclass(slots=True)
class Group:
    """The state of one group."""

    name: Name
    cluster: Name
    kind: Kind
    brokers: Annotated[
        dict[int, RegisteredBroker], Field(max_length=DirectoryLimits().broker_count_max)
    ] = field(default_factory=dict)
    master_id: Annotated[int, Field(strict=True, ge=NO_MASTER)] = NO_MASTER
    """The broker that last reported to be the master, with the highest epoch; or NO_MASTER."""
    master_epoch: Number = 0
    epochs: Bindings = field(default_factory=dict)
    epoch_highest: Number = 0
    """The highest number that was given out or reported; never goes back."""
    in_sync: BrokerIds = ()
    in_sync_version: Number = 0
    copy_count: CopyCount = 1
    topics: dict[Name, TopicQueues] = field(default_factory=dict)
    topics_version: tuple[Number, Number] = (0, 0)
    topics_size_bytes: Number = 0
    report_counts: Annotated[dict[int, int], Field(exclude=True)] = field(
        default_factory=dict, compare=False
    )
    """Reports and heartbeats of each broker that this process applied. Not part of the state: the
    count only shows that another one came, since clocks cannot be trusted to show it."""

    def register(self, report: BrokerReport, limits: DirectoryLimits) -> dict[str, Json]:
        """Apply a full report; return the values of its answer to the broker."""
        self._check_identity(report, limits)
        self._check_numbers(report, limits)
        if report.kind != "ha" and (report.bindings or report.in_sync):
            raise CommandRefused("malformed", "only an HA group has epochs and an in-sync set")
        # A number stays bound to its first owner.
        bindings = _newest({**report.bindings, **self.epochs}, limits.epoch_count_max)
        if report.role == "master":
            self._check_master(report, bindings)
        before = self.brokers.get(report.broker_id)
        self._count_report(report.broker_id)
        self.brokers[report.broker_id] = RegisteredBroker(
            report.broker_id,
            report.start_ms,
            report.address,
            report.ha_address,
            report.role,
            report.epoch,
            report.log_end,
            max(report.now_ms, before.last_seen_ms if before is not None else 0),
        )
        self.epochs = bindings
        self.epoch_highest = max(self.epoch_highest, report.epoch, *bindings, 0)
        if report.role == "master":
            self._take_master(report)
        elif self.master_id == report.broker_id:
            self.master_id = NO_MASTER
        conflicts: list[Json] = [
            number
            for number, binding in sorted(report.bindings.items())
            if bindings.get(number, binding) != binding
        ]
        return {
            "epoch_highest": self.epoch_highest,
            "conflicts": conflicts,
            "needs_topics": report.role == "master"
            and report.topics_version != self.topics_version,
        }

    def heartbeat(
        self,
        broker_id: int,
        start_ms: int,
        now_ms: int,
        epoch: int,
        log_end: LogEnd,
        limits: DirectoryLimits,
    ) -> None:
        """Apply a heartbeat. Raises CommandRefused."""
        broker = self._process(broker_id, start_ms)
        self._check_epoch(epoch, limits)
        self._count_report(broker_id)
        self.brokers[broker_id] = replace(
            broker,
            last_seen_ms=max(broker.last_seen_ms, now_ms),
            epoch=max(broker.epoch, epoch),
            log_end=log_end,
        )
        self.epoch_highest = max(self.epoch_highest, epoch)

    def _count_report(self, broker_id: int) -> None:
        self.report_counts[broker_id] = self.report_counts.get(broker_id, 0) + 1

    def unregister(self, broker_id: int, start_ms: int) -> None:
        """Forget a stopping broker."""
        self._process(broker_id, start_ms)
        self._remove(broker_id)

    def elect(
        self, number: int, wanted: Binding, expected: tuple[int, int], limits: DirectoryLimits
    ) -> None:
        """Give an epoch number to a master; compare-and-set on (highest number, list version).

        The broker that gets the number becomes the master here when it registers as such: first it
        has to fence (rule C3), which may fail.
        """
        self._check_expected(expected)
        bound = self.epochs.get(number)
        if bound is not None and bound != wanted:
            raise CommandRefused(
                "epoch_taken", f"epoch {number} belongs to broker {bound.master_id}", number=number
            )
        if number <= self.epoch_highest:
            raise CommandRefused(
                "epoch_too_low",
                f"epoch {number} is not above {self.epoch_highest}, the highest that is known",
                epoch_highest=self.epoch_highest,
            )
        if number > limits.epoch_max:
            raise CommandRefused(
                "epoch_exhausted", f"{limits.epoch_max} is the last epoch of a group"
            )
        self._check_epoch(number, limits)
        if wanted.master_id not in self.brokers:
            raise CommandRefused("unknown_broker", f"broker {wanted.master_id} has not registered")
        self.epochs = _newest({**self.epochs, number: wanted}, limits.epoch_count_max)
        self.epoch_highest = number

    def alter_in_sync(
        self,
        requester: int,
        members: tuple[int, ...],
        expected: tuple[int, int],
        limits: DirectoryLimits,
    ) -> int:
        """Replace the in-sync set for the master of the highest epoch; return the new version."""
        self._check_expected(expected)
        master = self.epochs.get(self.epoch_highest)
        if master is None or master.master_id != requester or self.master_id != requester:
            raise CommandRefused(
                "not_master", f"broker {requester} is not the master of epoch {self.epoch_highest}"
            )
        if requester not in members:
            raise CommandRefused("without_master", "the master belongs to its own in-sync set")
        if unknown := sorted(set(members) - set(self.brokers)):
            raise CommandRefused("unknown_broker", f"brokers {unknown} have not registered")
        if len(members) < self.copy_count and not set(members) >= set(self.in_sync):
            raise CommandRefused(
                "too_few_copies", f"{self.copy_count} copies are needed for an ack"
            )
        if members == self.in_sync:
            raise CommandRefused("unchanged", "this is the in-sync set already")
        if self.in_sync_version >= limits.epoch_max:
            raise CommandRefused(
                "version_exhausted", f"{limits.epoch_max} is the last version of a set"
            )
        self.in_sync, self.in_sync_version = members, self.in_sync_version + 1
        return self.in_sync_version

    @property
    def is_unserved(self) -> bool:
        """Whether no master has reported with the highest number yet."""
        return self.epoch_highest > self.master_epoch

    def is_exhausted(self, limits: DirectoryLimits) -> bool:
        """Whether no number is left for another master."""
        return self.kind == "ha" and self.epoch_highest >= limits.epoch_max

    def is_unfounded(self, limits: DirectoryLimits) -> bool:
        """Whether the group's numbers are far above all numbers that its brokers report.

        Forgetting the group is safe: numbers are advice, and its brokers register again at once.
        """
        if not self.brokers:
            return False
        founded = max(broker.epoch for broker in self.brokers.values())
        is_ahead = self.epoch_highest > founded + limits.epoch_lead_max
        return is_ahead or self.in_sync_version > limits.epoch_max

    def _check_numbers(self, report: BrokerReport, limits: DirectoryLimits) -> None:
        for number in (report.epoch, *report.bindings):
            self._check_epoch(number, limits)
        highest = max(limits.epoch_first_max, self.in_sync_version + limits.epoch_jump_max)
        if report.in_sync_version > min(highest, limits.epoch_max):
            raise CommandRefused(
                "version_too_high",
                f"version {report.in_sync_version} of an in-sync set is too far above "
                f"{self.in_sync_version}, the last one that is known",
                in_sync_version=self.in_sync_version,
            )

    def _check_epoch(self, number: int, limits: DirectoryLimits) -> None:
        is_raft, newest = self.kind == "raft", self.epoch_highest
        highest = newest + (limits.term_jump_max if is_raft else limits.epoch_jump_max)
        if newest == 0 or not self.brokers:
            # No registered broker could have reported a better number.
            highest = max(highest, limits.term_max if is_raft else limits.epoch_first_max)
        highest = min(highest, limits.term_max if is_raft else limits.epoch_max)
        if number > highest:
            raise CommandRefused(
                "epoch_too_high",
                f"epoch {number} is above {highest}, too far from {self.epoch_highest}, the "
                f"highest that is known of broker group {self.name}",
                epoch_highest=self.epoch_highest,
            )

    def _check_identity(self, report: BrokerReport, limits: DirectoryLimits) -> None:
        if (report.cluster, report.kind) != (self.cluster, self.kind):
            raise CommandRefused(
                "wrong_group",
                f"broker group {self.name} is a {self.kind} group of cluster {self.cluster}",
            )
        broker = self.brokers.get(report.broker_id)
        if broker is None and len(self.brokers) >= limits.broker_count_max:
            raise CommandRefused(
                "too_many_brokers", f"a group has at most {limits.broker_count_max}"
            )
        if broker is not None and report.start_ms < broker.start_ms:
            raise CommandRefused("stale_process", "a younger process of this broker has registered")

    def _check_master(self, report: BrokerReport, bindings: dict[int, Binding]) -> None:
        if report.epoch < self.master_epoch:
            raise CommandRefused(
                "stale_epoch",
                f"epoch {report.epoch} is over, {self.master_epoch} has a master",
                master_id=self.master_id,
                master_epoch=self.master_epoch,
            )
        owner = self.master_id if self.kind == "raft" else NO_MASTER
        if self.kind == "raft" and report.epoch > self.master_epoch:
            owner = NO_MASTER
        if self.kind == "ha":
            binding = bindings.get(report.epoch)
            if binding is None:
                raise CommandRefused(
                    "epoch_unbound", f"epoch {report.epoch} was never given to anybody"
                )
            owner = binding.master_id
        if owner not in (NO_MASTER, report.broker_id):
            raise CommandRefused("epoch_taken", f"epoch {report.epoch} belongs to broker {owner}")
        if self.kind == "ha":
            given = report.bindings.get(report.epoch)
            if given is not None and given != bindings[report.epoch]:
                raise CommandRefused(
                    "epoch_taken", f"epoch {report.epoch} was given with another nonce"
                )

    def _take_master(self, report: BrokerReport) -> None:
        self.master_id, self.master_epoch = report.broker_id, report.epoch
        self.copy_count = report.copy_count
        if report.in_sync_version > self.in_sync_version:
            self.in_sync, self.in_sync_version = report.in_sync, report.in_sync_version
        if report.topics is not None:
            self.topics, self.topics_version = dict(report.topics), report.topics_version
            self.topics_size_bytes = report.topics_size_bytes

    def _process(self, broker_id: int, start_ms: int) -> RegisteredBroker:
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise CommandRefused(
                "unknown_broker", f"broker {broker_id} of {self.name} must register"
            )
        if broker.start_ms != start_ms:
            raise CommandRefused("stale_process", "another process of this broker has registered")
        return broker

    def _remove(self, broker_id: int) -> None:
        del self.brokers[broker_id]
        if self.master_id == broker_id:
            self.master_id = NO_MASTER

    def _check_expected(self, expected: tuple[int, int]) -> None:
        if self.kind != "ha":
            raise CommandRefused("wrong_group", f"{self.name} is no HA group")
        if expected != (self.epoch_highest, self.in_sync_version):
            raise CommandRefused(
                "changed",
                f"epoch and list version are {self.epoch_highest} and {self.in_sync_version}, "
                f"not {expected[0]} and {expected[1]}: look again",
                epoch_highest=self.epoch_highest,
                in_sync_version=self.in_sync_version,
            )


def _newest(bindings: dict[int, Binding], count_max: int) -> dict[int, Binding]:
    return {number: bindings[number] for number in sorted(bindings)[-count_max:]}


GROUP: Final = TypeAdapter(Group)
