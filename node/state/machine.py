"""Applies committed commands to the replicated state: the applier of the driver.

Owns the way from the queue of the system topic to `State`, and the content of a snapshot; must not
know the callers of commands, or when checkpoints are written. Runs on the loop's thread. The
machine is an ordinary reader of one queue, so the commands not applied are simply those not read.
Once it listens, the dispatcher hands new commands over, and they need no way through the queue.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from node.config.limits import Limits
from node.errors.common import NodeError
from node.state.command_records import command_of, commands_in
from node.state.image import decode_image
from node.state.state import COMMAND_TOPIC, EMPTY_IMAGE, State, StateImage
from quorumlog.pb.state_pb2 import Command
from raft.messages import Index
from store.derived.dispatch import DispatchedUnit, Dispatcher
from store.derived.queues.pull import PullStatus
from store.files import failpoints
from store.files.failpoints import hit
from store.reads import Reads

_PULL_COUNT: Final = 1_024
_PULL_SIZE_BYTES: Final = 1024 * 1024

_NOTHING: Final = frozenset(
    {
        PullStatus.OFFSET_OVERFLOW_ONE,
        PullStatus.NO_MESSAGE_IN_QUEUE,
        PullStatus.NO_MATCHED_LOGIC_QUEUE,
    }
)


class StateMachine:
    """Applies commands in log order, each exactly once."""

    def __init__(self, store: Reads, limits: Limits, image: StateImage | None) -> None:
        """Begin with a checkpoint, or with nothing.

        In a plain log, which has no entries, an index is the last byte of a batch.
        """
        log = store.log
        self.store, self._log = store, log
        self.limits = limits
        self.state = State(limits, image or EMPTY_IMAGE)
        """The state. Look it up here each time: `restore` and `go_back` replace it."""
        self._refusals: OrderedDict[int, NodeError] = OrderedDict()
        """Refusals of the latest commands by log position, at most as many as may wait."""
        self.on_digest_command: Callable[[Command | None, int], None] | None = None
        """Called with each command about digests and its position, while the state is that right
        behind it; None, -1: a snapshot replaced the state."""
        self._dispatcher: Dispatcher | None = None
        self._pull_below = 0
        """Commands with lower offsets were dispatched before the machine listened."""
        self._ahead: list[DispatchedUnit] = []
        """Commands that the dispatcher handed over and that are not applied yet."""

    def listen(self, dispatcher: Dispatcher) -> None:
        """Take new commands from the dispatcher from now on.

        For the one machine of a node: a command then costs one read of the log.
        """
        dispatcher.watch(COMMAND_TOPIC.encode())
        self._dispatcher = dispatcher
        self._pull_below = self.store.queue_range(COMMAND_TOPIC, 0)[1]

    @property
    def applied_index(self) -> Index:
        """Index of the last entry that is in the state, with all before it."""
        return self.state.applied_index

    def apply(self, lo: Index, hi: Index) -> None:
        """Apply the commands of the entries [lo, hi), which are committed and dispatched.

        Entries that the state has already, from a checkpoint or a snapshot, are passed over. Raises
        the errors of `pull`, UnknownCommandError, NewerLevelError, and AssertionError when commands
        are missing: the node must stop.
        """
        state = self.state
        if self._dispatcher is not None:
            # Commands that the state has already would pile up behind a snapshot.
            next_offset = state.next_command_offset
            watched = self._dispatcher.take_watched()
            if watched and watched[0].offset < next_offset:
                watched = [unit for unit in watched if unit.offset >= next_offset]
            self._ahead += watched
        if hi - 1 <= state.applied_index:
            return
        assert lo <= state.applied_index + 1, f"[{lo}, {hi}) after {state.applied_index}"
        if failpoints.is_on:
            hit("state_machine.before_apply")
        hi_position = self._log.end_of(hi - 1)
        if self._dispatcher is None or state.next_command_offset < self._pull_below:
            while self._apply_some(hi_position):
                pass
        if self._ahead:
            self._apply_ahead(hi_position)
        state.applied_index = hi - 1
        if failpoints.is_on:
            hit("state_machine.after_apply")

    def _apply_ahead(self, hi_position: int) -> None:
        """Apply the commands that the dispatcher handed over and that lie below a position."""
        state, log, count = self.state, self._log, 0
        for offset, position, size_bytes, at_hand in self._ahead:
            if position >= hi_position:
                break
            count += 1
            if offset < state.next_command_offset:
                continue  # Pulled already, or part of a snapshot.
            assert offset == state.next_command_offset, f"{offset} heard of after {state}"
            record = at_hand or log.read(position, size_bytes)
            if not at_hand:
                log.check(position, record)
            refusal = state.apply_command(command_of(record), position)
            if refusal is not None:
                self._note_refusal(position, refusal)
            state.next_command_offset = offset + 1
            if state.digest_command is not None:
                self._take_digest_command(position)
        del self._ahead[:count]

    def _apply_one(self, command: Command, position: int) -> None:
        state = self.state
        refusal = state.apply_command(command, position)
        if refusal is not None:
            self._note_refusal(position, refusal)
        state.next_command_offset += 1
        if state.digest_command is not None:
            self._take_digest_command(position)

    def _take_digest_command(self, position: int) -> None:
        command, self.state.digest_command = self.state.digest_command, None
        if self.on_digest_command is not None:
            self.on_digest_command(command, position)

    def _apply_some(self, hi_position: int) -> bool:
        """Apply the commands of one pull; return whether there may be more."""
        state = self.state
        result = self.store.pull(
            COMMAND_TOPIC,
            0,
            state.next_command_offset,
            max_count=_PULL_COUNT,
            max_size_bytes=_PULL_SIZE_BYTES,
        )
        if result.status is not PullStatus.FOUND:
            assert result.status in _NOTHING, f"command {state.next_command_offset}: {result}"
            assert result.max_offset == state.next_command_offset, f"{result.max_offset} commands"
            return False
        for position, command in commands_in(result.data):
            if position >= hi_position:
                return False
            self._apply_one(command, position)
        assert state.next_command_offset == result.next_offset, f"{result.next_offset}"
        return result.next_offset < result.max_offset

    def _note_refusal(self, position: int, refusal: NodeError) -> None:
        self._refusals[position] = refusal
        if len(self._refusals) > self.limits.command_count_max:
            self._refusals.popitem(last=False)

    def take_refusal(self, position: int) -> NodeError | None:
        """Return why the command at a log position changed nothing; None if it was not refused."""
        return self._refusals.pop(position, None) if self._refusals else None

    # --- Checkpoints and snapshots ---

    def image(self) -> StateImage:
        """Return a copy of the state as of the last applied entry; never changed by later ones.

        For a checkpoint: do not save it before the log is durable here up to its applied index.
        """
        return self.state.image()

    def go_back(self, image: StateImage | None) -> None:
        """Begin again with an older state, or with nothing, after the log was cut.

        Commands that were applied since, and are still in the log, come with the next `apply`.
        """
        self.state = State(self.limits, image or EMPTY_IMAGE)
        self.forget_ahead()

    def forget_ahead(self) -> None:
        """Forget commands handed over and not applied, which may have been cut: read them again."""
        if self._dispatcher is not None:
            self._dispatcher.take_watched()
            self._pull_below = self.store.queue_range(COMMAND_TOPIC, 0)[1]
        self._ahead.clear()
        self._refusals.clear()

    def restore(self, state: bytes, index: Index) -> None:
        """Replace everything by the state of a snapshot; the log begins behind `index`.

        The state may be newer than that: it then passes over the entries it has. Raises
        CorruptionError.
        """
        image = decode_image(state)
        assert image.applied_index >= index, f"state of {image.applied_index}, log from {index}"
        self.state = State(self.limits, image)
        self._ahead.clear()
        self._refusals.clear()
        if self.on_digest_command is not None:
            self.on_digest_command(None, -1)
