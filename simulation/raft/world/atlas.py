"""The atlas: where damage may strike, so that the system's promises can still be kept.

Owns the rule of fault-matrix 10.3: each committed entry keeps one whole, durable copy, and no more
than a minority may come to doubt its memory. Must not know how a node notices damage. The atlas
looks at the true state, which no node can see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft.messages import Index

if TYPE_CHECKING:
    # A circle of types: a world makes its parts, and they act on it and on each other.
    from simulation.raft.world.process import Process
    from simulation.raft.world.world import World

_END = 1 << 60


def strike(world: World, node: Process, number: int, *, is_stale: bool) -> None:
    """Damage one durable entry of a node, if the cluster can survive that."""
    durable, memory = node.disk.durable, node.disk.memory
    base = durable.base_index
    lo, hi = max(base, memory.base_index) + 1, durable.last_index + 1
    if hi <= lo:
        return
    # Half of the time near the end, where few copies are.
    back = number >> 1
    index = hi - 1 - back % min(hi - lo, 8) if number & 1 else lo + back % (hi - lo)
    entry = durable.entries[index - base - 1]
    if memory.chain_at(index) != entry.chain or index in node.disk.bad:
        return
    known, _ = durable.known_commit()
    tail = index if index > known else _END
    if tail != _END and not world.injector.is_dispensable(node):
        world.coverage.hit("damage_withheld")
        return
    if not _survives(world, node, {index}, tail):
        world.coverage.hit("damage_withheld")
        return
    node.disk.damage(index, is_stale=is_stale, number=number >> 1)
    world.coverage.hit("damage_done")
    if world.trace is not None:
        world.note(f"{node} entry {index} is damaged, known committed {known}")


def may_lose(world: World, node: Process) -> bool:
    """Whether everything committed has a whole copy on other nodes."""
    if not any(other.disk.bad for other in world.nodes.values()):
        return True
    return _survives(world, node, set(), 0)


def _survives(world: World, node: Process, lost: set[Index], lost_from: Index) -> bool:
    """Whether each committed entry keeps a whole copy when `node` loses these entries."""
    whole: set[Index] = set()
    for other in world.nodes.values():
        if other is node:
            whole |= _whole(world, other, lost_from) - lost
        else:
            whole |= _whole(world, other, _END)
    return len(whole) == len(world.referee.ledger.entries)


def _whole(world: World, node: Process, lost_from: Index) -> set[Index]:
    """Return the committed entries that a node holds whole, as entries or within its snapshot."""
    image, bad = node.disk.durable, node.disk.bad
    ledger = world.referee.ledger.entries
    hi = min(image.last_index + 1, len(ledger))
    while hi > image.base_index + 1 and image.chain_at(hi - 1) != ledger[hi - 1].chain:
        hi -= 1
    known, _ = image.known_commit()
    # Damage above the known commit index of the node makes it drop the rest.
    hi = min([hi, lost_from, *(index for index in bad if index > known)])
    return {index for index in range(hi) if index not in bad}
