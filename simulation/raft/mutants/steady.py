"""Planted faults in the short way of the steady state: the same rules, broken where they stand a
second time.

Only the list; `mutants` explains an entry.
"""

from __future__ import annotations

from simulation.raft.mutants.mutation import Mutant

_TEST = "tests/raft/pump/test_steady.py::"
_BOTH = f"{_TEST}test_both_ways_have_the_same_effects"
_REPLY = f"{_TEST}test_any_other_reply_goes_the_general_way"
_APPEND = f"{_TEST}test_any_other_append_goes_the_general_way"
_CONSEQUENCES = f"{_TEST}test_an_ack_that_has_consequences_goes_the_general_way"
_OTHER_WORK = f"{_TEST}test_a_follower_with_other_work_goes_the_general_way"
_IN_OFFICE = f"{_TEST}test_only_a_leader_in_office_may_propose"
_IS_NEXT = "raft.rules.steady:is_next"
_OFFERS = "raft.rules.steady:offers"
_TAKE_ACK = "raft.rules.steady:take_ack"
_MAY_PROPOSE = "raft.rules.steady:may_propose"

MUTANTS: tuple[Mutant, ...] = (
    # What a follower takes.
    Mutant("steady_gap_taken", "R09", _IS_NEXT, "and prev_index == log.last_index", "", 25),
    Mutant(
        "steady_prev_term_not_compared",
        "R09",
        _IS_NEXT,
        "and message.prev_term == term == log.last_term",
        "and term == log.last_term",
        _APPEND,
    ),
    Mutant(
        "steady_second_leader_followed",
        "I1",
        _IS_NEXT,
        "message.sender == state.leader",
        "1",
        _APPEND,
    ),
    Mutant(
        "steady_leader_follows", "I2", _IS_NEXT, "state.role is Role.FOLLOWER", "True", _OTHER_WORK
    ),
    Mutant(
        "steady_runs_not_compared",
        "R10",
        _IS_NEXT,
        "message.runs == ((prev_index + 1, term),)",
        "message.runs",
        _APPEND,
    ),
    Mutant(
        "steady_configuration_missed", "R26", _IS_NEXT, "and not message.configurations", "", 150
    ),
    Mutant("steady_end_of_doubt_missed", "R29", _IS_NEXT, "and not message.admitted", "", _APPEND),
    Mutant(
        "steady_doubt_ignored",
        "R29",
        _IS_NEXT,
        "state.standing is Standing.FULL",
        "True",
        _OTHER_WORK,
    ),
    Mutant("steady_work_forgotten", "R02", _IS_NEXT, "and not state.is_dirty", "", _OTHER_WORK),
    Mutant(
        "steady_term_not_durable",
        "R01",
        _IS_NEXT,
        "and state.is_hard_state_durable",
        "",
        _OTHER_WORK,
    ),
    Mutant(
        "steady_snapshot_not_durable",
        "R30",
        _IS_NEXT,
        "and state.snapshot_gate == NO_INDEX",
        "",
        _OTHER_WORK,
    ),
    Mutant(
        "steady_foreign_append", "R42", _IS_NEXT, "and message.group == state.group", "", _APPEND
    ),
    Mutant(
        "steady_commit_beyond_verified",
        "R12",
        "raft.rules.steady:take",
        "commit = message.commit if message.commit < last else last",
        "commit = message.commit",
        60,
    ),
    Mutant(
        "steady_commit_goes_back",
        "I6",
        "raft.rules.steady:take",
        "if commit > state.commit:",
        "if commit >= NO_INDEX:",
        150,
    ),
    Mutant(
        "steady_timer_not_reset",
        "R08",
        "raft.rules.steady:take",
        "state.timer_start = state.contact_tick = state.now",
        "pass",
        _BOTH,
    ),
    Mutant(
        "steady_ack_before_sync",
        "R16",
        "raft.pump.replica:Replica._receive_next",
        "self._flushes.hold(ack)",
        "self._send(ack)",
        25,
    ),
    Mutant(
        "steady_entries_not_checked",
        "S04",
        "raft.pump.replica:Replica._receive_next",
        "checked = self.log.check_raw(append, payload, append.prev_index)",
        "checked = payload",
        25,
    ),
    # What a leader counts.
    Mutant(
        "steady_ack_of_another_term",
        "R14",
        _TAKE_ACK,
        "message.term != state.term",
        "False",
        _REPLY,
    ),
    Mutant(
        "steady_follower_counts",
        "I1",
        _TAKE_ACK,
        "or state.role is not Role.LEADER",
        "",
        f"{_TEST}test_a_deposed_leader_takes_no_ack",
    ),
    Mutant(
        "steady_doubtful_ack_counts",
        "R29",
        _TAKE_ACK,
        "or message.standing is not Standing.FULL",
        "",
        _REPLY,
    ),
    Mutant(
        "steady_ack_before_power_loss",
        "R29",
        _TAKE_ACK,
        "or message.incarnation != progress.incarnation",
        "",
        _REPLY,
    ),
    Mutant(
        "steady_refusal_is_an_ack",
        "R34",
        _TAKE_ACK,
        "or message.refusal is not Refusal.NONE",
        "",
        _REPLY,
    ),
    Mutant(
        "steady_ack_beyond_the_log", "R14", _TAKE_ACK, "or match > state.log.last_index", "", _REPLY
    ),
    Mutant(
        "steady_round_that_never_began", "R19", _TAKE_ACK, "or round_id > state.round", "", _REPLY
    ),
    Mutant(
        "steady_reads_not_confirmed",
        "R19",
        _TAKE_ACK,
        "or (round_id > progress.round and state.reads_pending)",
        "",
        _CONSEQUENCES,
    ),
    Mutant(
        "steady_transfer_forgotten",
        "R43",
        _TAKE_ACK,
        "or state.transferee != NO_NODE",
        "",
        _CONSEQUENCES,
    ),
    Mutant(
        "steady_probe_not_ended",
        "R33",
        _TAKE_ACK,
        "or progress.state is not ProgressState.REPLICATE",
        "",
        _CONSEQUENCES,
    ),
    Mutant(
        "steady_uncounted_follower",
        "R29",
        _TAKE_ACK,
        "or not progress.is_counted",
        "",
        _CONSEQUENCES,
    ),
    Mutant("steady_foreign_ack", "R42", _TAKE_ACK, "or message.group != state.group", "", _REPLY),
    Mutant(
        "steady_match_goes_back",
        "R14",
        _TAKE_ACK,
        "if match > progress.match:",
        "if True:",
        "tests/raft/rules/test_commit.py::test_match_never_goes_back",
    ),
    Mutant(
        "steady_contact_not_noted",
        "R23",
        _TAKE_ACK,
        "progress.contact_tick = state.now",
        "pass",
        _BOTH,
    ),
    # What a leader offers and proposes.
    Mutant("steady_inherited_entries_offered", "R13", _OFFERS, "lo <= own_first or ", "", 150),
    Mutant("steady_configuration_hidden", "R26", _OFFERS, "lo <= newest or ", "", 150),
    Mutant(
        "steady_window_ignored",
        "R35",
        _OFFERS,
        "if hi - match - 1 > state.steady_entry_count_max:",
        "if False:",
        "tests/raft/state/test_progress.py::test_window_bounds_entries",
    ),
    Mutant(
        "steady_size_ignored",
        "R35",
        _OFFERS,
        "> state.steady_size_bytes_max",
        "< 0",
        f"{_TEST}test_two_entries_beyond_the_limits_are_offered_by_the_general_way",
    ),
    Mutant(
        "steady_follower_proposes",
        "I1",
        _MAY_PROPOSE,
        "state.role is not Role.LEADER",
        "False",
        _IN_OFFICE,
    ),
    Mutant(
        "steady_proposes_during_transfer",
        "R43",
        _MAY_PROPOSE,
        "or state.transferee != NO_NODE",
        "",
        _IN_OFFICE,
    ),
    Mutant(
        "steady_overtakes_own_entries",
        "R13",
        _MAY_PROPOSE,
        "or state.own_entries",
        "",
        f"{_TEST}test_no_entry_overtakes_those_of_the_core",
    ),
    Mutant(
        "steady_uncommitted_without_bound",
        "R35",
        _MAY_PROPOSE,
        "or held >= state.config.uncommitted_entry_count_max",
        "",
        f"{_TEST}test_entries_that_wait_for_their_commit_are_limited",
    ),
)
