"""Whole entries of a ledger: one is made, or checked, with the functions for parts and runs."""

from store.ledger.entry import ChainLink, EntryProblem, check_run, whole_entry


def encode_entry(kind: int, link: ChainLink, position: int, body: bytes) -> bytes:
    """Return a whole entry. `link` is (index before, term of this entry, chain before)."""
    return whole_entry(body, kind, link, link.term, position)[0]


def check_entry(
    data: bytes, position: int, link: ChainLink, *, file_end_position: int
) -> EntryProblem | None:
    """Check that `data` is exactly the one entry that follows `link` at `position`."""
    run = check_run(data, position, link, file_end_position=file_end_position)
    if run.problem is not None:
        return run.problem
    if run.end != len(data) or run.link.entry_index != link.entry_index + 1:
        return EntryProblem(
            0, "entry", "one whole entry", f"{run.entry_count} in {len(data)} bytes"
        )
    return None
