"""Planted faults in the handling of lost memory, damage at rest and full disks: rules S05, S06,
S11, S15 and design 4.5.

Only the list; `mutants` explains an entry.
"""

from __future__ import annotations

from simulation.raft.mutants.mutation import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "damage_is_read",
        "S05",
        "simulation.raft.disk.disk:Disk.checked",
        "if not check_read(read, entry.index, entry.term):",
        "if False:",
        60,
    ),
    Mutant(
        "core_runs_on_a_damaged_log",
        "S05",
        "simulation.raft.world.process:Process.start",
        "if self.disk.bad:",
        "if False:",
        60,
    ),
    Mutant(
        "damage_below_commit_is_cut",
        "S05",
        "simulation.raft.disk.damage:damaged_tail",
        "known, chain = image.known_commit()",
        "known, chain = image.base_index, image.base_chain",
        60,
    ),
    Mutant(
        "cut_tail_leaves_no_doubt",
        "S06",
        "simulation.raft.disk.disk:Disk.cut_damaged_tail",
        "recovering_state(self.load()).hard_state",
        "self.load().hard_state",
        400,
    ),
    Mutant(
        "old_end_of_log_is_believed",
        "S05",
        "simulation.raft.disk.damage:damaged_range",
        "if _chain_before(image, bad, known + 1) == known_chain:",
        "if True:",
        "tests/simulation/raft/test_damage.py"
        "::test_old_sector_at_the_end_of_what_is_committed_is_found",
    ),
    Mutant(
        "repair_is_not_proven",
        "S15",
        "simulation.raft.world.repair:SimulatedRepair.take",
        "if not is_chain(payload, reply.wanted):",
        "if False:",
        "tests/simulation/raft/test_damage.py::test_answer_that_proves_nothing_is_refused",
    ),
    Mutant(
        "snapshot_must_cover_the_damage",
        "S15",
        "simulation.raft.world.repair:answer",
        "if snapshot is not None and snapshot.index >= wanted.lo:",
        "if snapshot is not None and snapshot.index >= wanted.hi - 1:",
        "tests/simulation/raft/test_damage.py"
        "::test_snapshot_that_ends_within_the_damage_is_a_beginning",
    ),
    Mutant(
        "repair_never_widens",
        "S15",
        "simulation.raft.world.repair:SimulatedRepair._ask",
        "more = (1 << self._attempts % _WIDENINGS) - 1",
        "more = 0",
        "tests/simulation/raft/test_damage.py::test_node_asks_for_more_than_looks_damaged",
    ),
    Mutant(
        "snapshot_repair_keeps_the_term",
        "S15",
        "simulation.raft.disk.disk:Disk.mend_by_snapshot",
        "if meta.term > image.hard_state.term:",
        "if False:",
        "tests/simulation/raft/test_damage.py::test_fetched_snapshot_keeps_what_follows_it_and"
        "_raises_the_term",
    ),
    Mutant(
        "snapshot_repair_drops_the_rest",
        "S15",
        "simulation.raft.disk.disk:Disk.mend_by_snapshot",
        "if meta.index < image.last_index and follows:",
        "if False:",
        "tests/simulation/raft/test_damage.py::test_fetched_snapshot_keeps_what_follows_it_and"
        "_raises_the_term",
    ),
    Mutant(
        "loss_reported_one_too_high",
        "4.5",
        "raft.rules.recovery:win_recovery_election",
        "state.loss_from = _loss_from(state, state.term - 1)",
        "state.loss_from = _loss_from(state, state.term - 1) + 1",
        400,
    ),
    Mutant(
        "loss_of_a_newer_term_forgotten",
        "4.5",
        "raft.rules.recovery:_loss_from",
        "if state.log.last_term >= newest_term:",
        "if True:",
        "tests/raft/rules/test_recovery.py"
        "::test_loss_may_reach_below_the_end_of_a_tail_that_was_replaced",
    ),
    Mutant(
        "accepted_loss_not_reported",
        "4.5",
        "raft.rules.recovery:accept_loss",
        "state.loss_from = _loss_from(state, state.term)",
        "pass",
        "tests/raft/rules/test_recovery.py::test_operator_accepts_the_loss",
    ),
    Mutant(
        "recovery_election_by_majority",
        "4.5",
        "raft.rules.election:_count_votes",
        "unanimous=state.is_recovery_campaign",
        "unanimous=False",
        400,
    ),
    Mutant(
        "proposal_into_a_full_disk",
        "S11",
        "simulation.raft.world.process:Process.serve",
        "if self.disk.is_full:",
        "if False:",
        60,
    ),
    Mutant(
        "append_into_a_full_disk",
        "S11",
        "simulation.raft.world.process:Process.receive",
        "if self.disk.is_full and (kind is AppendRequest or kind is InstallSnapshot):",
        "if False:",
        60,
    ),
    Mutant(
        "full_disk_deafens",
        "S11",
        "raft.pump.replica:Replica.receive_without_room",
        "self.core.step(message.without_entries())",
        "pass",
        "tests/raft/pump/test_inputs.py"
        "::test_follower_without_room_hears_its_leader_and_takes_nothing",
    ),
)
