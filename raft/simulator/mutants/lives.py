"""Planted faults in the detection of old copies of disks, and in the handling of two histories.

Only the list; `mutants` explains an entry. Random runs hide a missing comparison, since mostly
several comparisons find a copy; they notice one too many, which gives a false alarm.
"""

from __future__ import annotations

from raft.simulator.mutants.mutation import Mutant

_LIVES = "tests/raft/test_lives.py::"
_APART = "tests/raft/rules/test_divergence.py::"
_COPY = "tests/raft/rules/test_old_copy.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "life_that_is_over_is_believed",
        "D18",
        "raft.lives:memory_lost",
        "elif told.life < known.life:",
        "elif False:",
        f"{_LIVES}test_an_old_copy_is_found_by",
    ),
    Mutant(
        "life_is_begun_twice",
        "D18",
        "raft.lives:memory_lost",
        "elif told.life == known.life:",
        "elif False:",
        f"{_LIVES}test_an_old_copy_is_found_by",
    ),
    Mutant(
        "a_copy_that_starts_often_is_believed",
        "D18",
        "raft.lives:memory_lost",
        "elif not _has_lived(told, known):",
        "elif False:",
        f"{_LIVES}test_an_old_copy_is_found_by",
    ),
    Mutant(
        "term_of_a_copy_is_not_compared",
        "D18",
        "raft.lives:memory_lost",
        "if term < known.term:",
        "if False:",
        f"{_LIVES}test_an_old_copy_is_found_by",
    ),
    Mutant(
        "committed_entries_of_a_copy_are_not_compared",
        "D18",
        "raft.lives:memory_lost",
        "if last < known.committed:",
        "if False:",
        f"{_LIVES}test_an_old_copy_is_found_by",
    ),
    Mutant(
        "acked_entries_of_a_copy_are_not_compared",
        "D18",
        "raft.lives:memory_lost",
        "if term == known.acked_term and last < known.acked:",
        "if False:",
        f"{_LIVES}test_an_old_copy_is_found_by",
    ),
    Mutant(
        "a_cut_by_a_later_leader_is_a_copy",
        "D18",
        "raft.lives:memory_lost",
        "if term == known.acked_term and last < known.acked:",
        "if last < known.acked:",
        f"{_LIVES}test_ordinary_lives_are_no_old_copies",
    ),
    Mutant(
        "a_new_disk_is_a_copy",
        "D18",
        "raft.lives:memory_lost",
        "if told.life == NO_LIFE or told.joined > known.incarnation:",
        "if told.life == NO_LIFE:",
        60,
    ),
    Mutant(
        "a_loss_of_power_is_a_copy",
        "D18",
        "raft.lives:memory_lost",
        "if told.incarnation > known.incarnation:",
        "if False:",
        150,
    ),
    Mutant(
        "a_loss_of_power_hides_a_copy",
        "D18",
        "raft.lives:memory_lost",
        "if told.life == NO_LIFE or told.joined > known.incarnation:",
        "if told.life == NO_LIFE or told.incarnation > known.incarnation:",
        f"{_LIVES}test_a_loss_of_power_hides_no_old_copy",
    ),
    Mutant(
        "nobody_is_judged",
        "D18",
        "raft.lives:Lives.judge",
        "lost = memory_lost(was, told)",
        "lost = ''",
        f"{_LIVES}test_the_memory_of_another_node_finds_a_believed_copy",
    ),
    Mutant(
        "a_copy_keeps_its_vote",
        "R29",
        "raft.rules.follower:lose_memory",
        "state.standing = Standing.JOINING",
        "pass",
        150,
    ),
    Mutant(
        "a_copy_keeps_a_promise",
        "R29",
        "raft.rules.follower:lose_memory",
        "state.send_after_sync.clear()",
        "pass",
        f"{_COPY}test_a_promise_of_this_turn_is_not_made",
    ),
    Mutant(
        "committed_is_cut",
        "R11",
        "raft.rules.follower:stands_aside",
        "or conflict_of(state, message) != NO_INDEX",
        "or False",
        f"{_APART}test_a_leader_without_what_is_committed_here",
    ),
    Mutant(
        "a_shorter_log_of_a_newer_term_gets_a_vote",
        "R11",
        "raft.rules.divergence:contradicts",
        "return not message.recovery and message.last_index < state.commit",
        "return False",
        f"{_APART}test_a_candidate_that_lacks_what_is_committed_gets_no_vote",
    ),
    Mutant(
        "who_stands_aside_campaigns",
        "R11",
        "raft.rules.election:is_entitled",
        "if state.standing in (Standing.JOINING, Standing.DIVERGED):",
        "if state.standing is Standing.JOINING:",
        f"{_APART}test_a_divergent_node_takes_part_in_no_election",
    ),
    Mutant(
        "who_stands_aside_counts",
        "R11",
        "raft.rules.recovery:admit_reply",
        "if message.standing is Standing.DIVERGED:",
        "if False:",
        f"{_APART}test_a_leader_counts_it_for_nothing_and_sends_heartbeats_only",
    ),
    Mutant(
        "a_snapshot_of_another_history_is_taken",
        "R11",
        "raft.rules.snapshot:handle_install",
        "if state.standing is Standing.DIVERGED or snapshot_conflicts(state, meta):",
        "if False:",
        f"{_APART}test_a_snapshot_of_another_history_is_not_taken",
    ),
    Mutant(
        "the_end_of_a_log_is_compared_by_its_term_only",
        "R11",
        "raft.pump.replica:Replica._check",
        "if append.prev_chain is not None and log.term_of(prev_index) == append.prev_term:",
        "if False:",
        f"{_APART}test_the_leader_of_another_history_of_the_same_term",
    ),
    Mutant(
        "what_is_here_by_its_term_is_acked",
        "R11",
        "raft.pump.replica:Replica._check",
        "held = log.first_conflict(prev_index + 1, append.hi, append.runs) - 1",
        "pass",
        f"{_APART}test_the_leader_of_another_history_of_the_same_term",
    ),
    Mutant(
        "a_term_with_two_leaders_goes_on",
        "R03",
        "raft.rules.follower:is_second_leader",
        "return state.role is Role.LEADER or state.leader not in (NO_NODE, leader)",
        "return False",
        "tests/raft/rules/test_terms.py::test_a_term_with_two_leaders_is_left",
    ),
)
