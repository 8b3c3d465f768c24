"""The end of a store as SIGKILL brings it, within this process."""

from store.engine import Engine
from store.ledger.ledger import Ledger
from store.log.commit_log import CommitLog


def abandon(engine: Engine[CommitLog | Ledger], *, is_open: bool = True) -> None:
    """Let go of a directory with nothing finished or synced. `is_open`: files stay open, as those
    of a store that the garbage collector has not met yet; else they are closed."""
    engine.flush_service.stop()
    if engine.warm_up:
        engine.warm_up.stop()
    if not is_open:
        for files in (engine.log, engine.queues, engine.index):
            files.close()
        for fd in (engine.mark._fd, engine.checkpoint._fd):  # To close these would sync them.
            engine.fs.close(fd)
    engine._lock.release()
