"""Planted faults: each replaces one fragment of one function, and the referees have to find it.

Owns the table and how a fault is switched on: the changed source is compiled and its code object
replaces the old one. A seed counts as a kill only if it passes without the fault.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import NamedTuple

from simulation.ha.world import HaWorld

SEED_COUNT_DEFAULT = 60


class HaMutant(NamedTuple):
    """One planted fault."""

    name: str
    target: str
    """module:function or module:Class.method, below node.replication.ha.core."""
    old: str
    """Occurs exactly once in the source of the target."""
    new: str
    seeds: int = SEED_COUNT_DEFAULT
    """Seeds, from 1 on, within which it must be found; 0: found by a test, see `DIRECTED`."""


MUTANTS = (
    HaMutant(
        "an absurd epoch is bound",
        "state:HaState.check_epoch",
        "if self.ceiling.refuses(number):",
        "if False:",
        0,
    ),
    HaMutant(
        "who was left behind stays behind",
        "ceiling:EpochCeiling.pass_time",
        "self.limit if self._was_refused else number",
        "number",
        0,
    ),
    HaMutant(
        "epochs of a log above the fence",
        "follower:on_reply",
        "if frame.last_epoch > s.bound.number:",
        "if False:",
        0,
    ),
    HaMutant("ack before sync", "follower:ack", "else s.durable", "else s.end"),
    HaMutant(
        "fence too small",
        "leader:evaluate",
        "< s.settings.fence_count",
        "< s.settings.fence_count - 1",
    ),
    HaMutant("own log wins", "leader:evaluate", "if s.epochs.rank(s.end) >= best:", "if True:"),
    HaMutant(
        "length before epoch",
        "leader:evaluate",
        "(Rank(link.promise.last_epoch, ",
        "(Rank(s.epochs.last.number, ",
        400,
    ),
    HaMutant(
        "copies of an older epoch count",
        "copies:Copies.on_ack",
        "if position >= self.epoch_start:",
        "if True:",
        0,
    ),
    HaMutant(
        "acks count per frame",
        "copies:Copies.on_ack",
        "self._acks[replica_id] =",
        "self._acks[-len(self._acks) - 1] =",
    ),
    HaMutant(
        "one copy too few", "copies:Copies.position", "self._copies - 1]", "self._copies - 2]"
    ),
    HaMutant(
        "master counts itself unsynced",
        "copies:Copies.position",
        "[durable, *others",
        "[1 << 60, *others",
    ),
    HaMutant(
        "async ack before sync",
        "copies:PendingCopies.resolve",
        "(AckMode.ASYNC, durable)",
        "(AckMode.ASYNC, 1 << 60)",
    ),
    HaMutant(
        "unknown told as acked",
        "copies:PendingCopies.give_up",
        "Outcome.UNKNOWN",
        "Outcome.APPLIED",
    ),
    HaMutant(
        "a number is bound twice",
        "types:check_binding",
        "asked.number <= bound.number",
        "asked.number < bound.number",
    ),
    HaMutant(
        "a promise of another pair counts",
        "leader:on_bound",
        "if frame.binding != s.bound:",
        "if frame.binding.number != s.bound.number:",
    ),
    HaMutant(
        "binding not saved", "state:HaState.bind", "self.fx.state = self.replica", "pass", 200
    ),
    HaMutant("nothing is cut", "follower:on_reply", "if point.position < s.end:", "if False:"),
    HaMutant("cut too late", "epochs:Epochs.consistent_point", "return min(", "return max("),
    HaMutant(
        "epochs are taken over at handshakes only",
        "follower:on_transfer",
        "if s.epochs.adopt(receiver.epochs, s.end):",
        "if False:",
    ),
    HaMutant(
        "epochs of others stay",
        "epochs:Epochs.truncate",
        "or self.last not in theirs",
        "or False",
        200,
    ),
    HaMutant("epochs outlive the log", "epochs:Epochs.trim", "if entry.start <= end", "if True", 0),
    HaMutant(
        "readers beyond the log",
        "follower:on_transfer",
        "s.set_confirm(min(frame.confirm, s.end))",
        "s.set_confirm(frame.confirm)",
    ),
    HaMutant(
        "readers beyond k copies",
        "leader:advance",
        "if s.mode is AckMode.ASYNC else s.copies.position(s.durable)",
        "",
    ),
    HaMutant("readers above a cut", "follower:_cut", "if s.confirm > point:", "if False:"),
    HaMutant("loss not counted", "follower:_cut", "max(point, readable)", "point"),
    HaMutant(
        "transfers span epochs",
        "sender:HaSender.ship",
        "epochs.end_of(epoch.number, end) if epoch.number else first",
        "end",
    ),
    HaMutant(
        "a new disk counts for the fence",
        "leader:evaluate",
        "and link.promise.standing is HaStanding.FULL",
        "",
        400,
    ),
    HaMutant(
        "a new disk counts at once",
        "leader:_admit",
        "sender.acked >= max(s.copies.epoch_start, s.confirm)",
        "True",
        0,
    ),
    HaMutant("a new disk counts unasked", "leader:_admit", "not admission.is_open or", "", 0),
    HaMutant(
        "a donor's old session is believed",
        "leader:_take_log_of",
        "if link.had_session:",
        "if False:",
        0,
    ),
    HaMutant(
        "the first offset is trusted",
        "sender:HaSender.on_ack",
        "if not 0 <= position <= end:",
        "if False:",
        0,
    ),
)


DIRECTED = {
    "an absurd epoch is bound": "test_a_replica_that_slept_follows_and_steps_have_a_speed",
    "who was left behind stays behind": "test_a_replica_that_slept_follows_and_steps_have_a_speed",
    "epochs of a log above the fence": "test_the_epochs_of_a_log_are_not_above_the_fence",
    "copies of an older epoch count": "test_an_ack_below_the_epoch_start_is_no_copy",
    "epochs outlive the log": "test_a_restarted_master_does_not_go_on_in_its_epoch",
    "a new disk counts at once": "test_a_new_disk_is_not_admitted_below_the_limit_of_readers",
    "a new disk counts unasked": (
        "test_a_new_disk_counts_after_all_others_confirmed_and_it_holds_everything"
    ),
    "a donor's old session is believed": "test_a_donor_is_asked_on_a_fresh_link",
    "the first offset is trusted": "test_a_master_does_not_ship_to_who_claims_more_than_there_is",
}
"""Faults too rare for seeds, with the test under tests/node/replication/ha/core that finds each."""


@contextmanager
def switched_on(mutant: HaMutant) -> Iterator[None]:
    """Run the body with the fault."""
    module_name, _, path = mutant.target.partition(":")
    found: object = importlib.import_module(f"node.replication.ha.core.{module_name}")
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    assert isinstance(found, FunctionType), f"{mutant.target} is no plain function"
    source = textwrap.dedent(inspect.getsource(found))
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.old!r} is not once in {mutant.target}")
    original = found.__code__
    flags = __future__.annotations.compiler_flag
    text = source.replace(mutant.old, mutant.new)
    module = compile(text, f"<mutant {mutant.name}>", "exec", flags, dont_inherit=True)
    codes = [c for c in module.co_consts if isinstance(c, CodeType)]
    changed = next(code for code in codes if code.co_name == found.__name__)
    assert changed.co_freevars == original.co_freevars, mutant.target
    found.__code__ = changed
    try:
        yield
    finally:
        found.__code__ = original


def hunt(mutant: HaMutant) -> tuple[int, str]:
    """Return the first seed that finds the fault, and the code; (0, "") if none does."""
    for seed in range(1, mutant.seeds + 1):
        with switched_on(mutant):
            report = HaWorld(seed).run()
        # A seed that fails without the fault proves nothing about it.
        if report.code and not HaWorld(seed).run().code:
            return seed, report.code
    return 0, ""


def run_table(names: list[str], tell: Callable[[str], None]) -> int:
    """Hunt the named faults, by default all, and print the table; return non-zero if one
    survives."""
    wanted = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    if len(wanted) < len(names):
        tell("no such mutant")
        return 2
    survivors = 0
    for mutant in wanted:
        if mutant.name in DIRECTED:
            tell(f"{mutant.name:45} left to {DIRECTED[mutant.name]}")
            continue
        seed, code = hunt(mutant)
        survivors += not seed
        what = f"killed by seed {seed} of {mutant.seeds}: {code}" if seed else "SURVIVED"
        tell(f"{mutant.name:45} {what}")
    directed = sum(mutant.name in DIRECTED for mutant in wanted)
    killed = len(wanted) - survivors - directed
    tell(f"{killed} killed, {survivors} survived, {directed} left to tests")
    return 1 if survivors else 0
