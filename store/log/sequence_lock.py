"""A sequence lock: tells a reader whether the log was cut or replaced while it read.

Owns the number; must not know what changes. The writer raises the number before its first change
and after its last one, so an odd number says that a change is under way. A count that is raised
once does not do: a reader that begins within the change would note the new number with the old log.
"""


class SequenceLock:
    """One writer; readers on any thread, which never wait.

    A reader notes `number`, reads, and then asks `is_unchanged`.
    """

    def __init__(self) -> None:
        self.number = 0
        """Odd while a change is under way, and after one that failed until it is completed."""

    def begin(self) -> None:
        """Note that a change begins, or that one which failed half-way is taken up again."""
        self.number |= 1

    def end(self) -> None:
        """Note that the change is complete. Not after an error: what is read may be half of it."""
        assert self.number % 2, f"no change has begun at {self.number}"
        self.number += 1

    def is_unchanged(self, number: int) -> bool:
        """Whether no change was under way when `number` was noted, and none has begun since."""
        return number % 2 == 0 and number == self.number
