"""Raw entries from another replica by request: the asking and the answering side.

Owns the two frames, their deadlines and bounds; must not know why entries are fetched or how they
are proven. An answer holds committed entries only: a replica that lost entries it had promised must
not get other, never committed ones in their place. Every replica that has the entries answers,
leader or not; damaged bytes are never sent.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from node.errors.common import NodeError
from node.peers.frames import PAYLOAD_SIZE_BYTES_MAX, FrameKind
from node.peers.link import PeerLink
from quorumlog.foreign_text import shown
from quorumlog.pb import peer_pb2 as pb
from raft.errors import PeerProtocolError
from raft.messages import NO_INDEX, Index, NodeId
from store import format as fmt
from store.errors import PositionRangeError, StoreError
from store.ledger.entry import unpack_header

_TEXT_SIZE_MAX: Final = 200
assert fmt.ENTRY_SIZE_BYTES_MAX <= PAYLOAD_SIZE_BYTES_MAX, "an entry must fit into a frame"


class FetchLimits(NamedTuple):
    """Limits of both sides."""

    answer_size_bytes_max: int = 1 << 20
    """Raw entries in one answer. An entry larger than this travels alone."""
    answer_ms_max: int = 5000
    """Time after which a peer without an answer is passed over."""


_LIMITS: Final = FetchLimits()


class FetchError(NodeError):
    """A peer did not give the requested entries. Ask another one, or the same one later."""

    code, retryable, status = "node.fetch_failed", True, "UNAVAILABLE"
    text = "node {node}: {reason}; ask another replica, or this one later"
    node: NodeId
    reason: str
    commit_index: Index = NO_INDEX
    """The last entry that the peer has committed, if that is too early."""


class Fetched(NamedTuple):
    """Raw entries [lo, hi), back to back without blanks; at least one. They are not checked."""

    lo: Index
    hi: Index
    raw_entries: bytes


class _Request(NamedTuple):
    node: NodeId
    lo: Index
    hi: Index
    future: "asyncio.Future[Fetched]"


class EntryFetcher:
    """Asks peers for entries. On the event loop."""

    def __init__(
        self,
        link: PeerLink,
        peers: Callable[[], Iterable[NodeId]],
        limits: FetchLimits = _LIMITS,
    ) -> None:
        """`peers` are the nodes that may be asked, connected or not."""
        self._link, self._peers, self.limits = link, peers, limits
        self._requests: dict[int, _Request] = {}
        self._last_id = 0

    def candidates(self) -> list[NodeId]:
        """Return the peers that can be asked now."""
        return [node for node in self._peers() if self._link.is_connected(node)]

    async def fetch(self, node: NodeId, lo: Index, hi: Index) -> Fetched:
        """Fetch entries from `lo` on, before `hi`; at least one. Raises FetchError."""
        assert lo < hi, f"nothing to fetch in [{lo}, {hi})"
        self._last_id += 1
        request_id = self._last_id
        future: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        header = pb.FetchEntries(request_id=request_id, lo=lo, hi=hi).SerializeToString()
        if not self._link.send(node, FrameKind.FETCH_ENTRIES, header):
            raise FetchError(node, "it is not connected, or its queue is full")
        self._requests[request_id] = _Request(node, lo, hi, future)
        try:
            async with asyncio.timeout(self.limits.answer_ms_max / 1000):
                return await future
        except TimeoutError:
            reason = f"no answer within {self.limits.answer_ms_max} ms"
            raise FetchError(node, reason) from None
        finally:
            del self._requests[request_id]

    def on_frame(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        """Take a FETCHED_ENTRIES. Raises PeerProtocolError."""
        assert kind is FrameKind.FETCHED_ENTRIES, f"{kind!r} is no answer"
        try:
            answer = pb.FetchedEntries.FromString(header)
        except DecodeError as error:
            raise PeerProtocolError(node, f"header of fetched entries: {error}") from error
        request = self._requests.get(answer.request_id)
        if request is None or request.node != node or request.future.done():
            return  # Given up meanwhile.
        if answer.error:
            text = shown(answer.error, _TEXT_SIZE_MAX)
            request.future.set_exception(FetchError(node, f"it says: {text}"))
        elif answer.lo == answer.hi == request.lo and not payload:
            reason = f"it has no committed entry {request.lo}, only up to {answer.commit_index}"
            request.future.set_exception(FetchError(node, reason, answer.commit_index))
        elif answer.lo != request.lo or not answer.lo < answer.hi <= request.hi or not payload:
            raise PeerProtocolError(
                node,
                f"{len(payload)} bytes of entries [{answer.lo}, {answer.hi}), "
                f"asked for [{request.lo}, {request.hi})",
            )
        else:
            request.future.set_result(Fetched(answer.lo, answer.hi, bytes(payload)))

    def on_disconnected(self, node: NodeId) -> None:
        """Fail the requests to `node`: a connection to it broke, and they may be lost."""
        for request in self._requests.values():
            if request.node == node and not request.future.done():
                request.future.set_exception(FetchError(node, "the connection was lost"))


class EntryServer:
    """Answers peers that fetch. A node whose log is not open has none."""

    def __init__(
        self,
        link: PeerLink,
        read_range: Callable[[Index, Index, int], bytes],
        commit_index: Callable[[], Index],
        limits: FetchLimits = _LIMITS,
    ) -> None:
        """`read_range(lo, hi, max_size_bytes)` is `Ledger.read_range`."""
        self._link, self._read_range, self._commit_index = link, read_range, commit_index
        self._limits = limits
        self.answered_count = self.failed_count = 0
        """Answers since the start; one that could not be queued counts as failed."""

    def on_frame(self, node: NodeId, kind: FrameKind, header: bytes, payload: memoryview) -> None:
        """Take a FETCH_ENTRIES and answer it. Raises PeerProtocolError."""
        assert kind is FrameKind.FETCH_ENTRIES, f"{kind!r} is no request"
        try:
            request = pb.FetchEntries.FromString(header)
        except DecodeError as error:
            raise PeerProtocolError(node, f"header of a fetch: {error}") from error
        if not 0 <= request.lo < request.hi or payload:
            raise PeerProtocolError(node, f"a fetch of [{request.lo}, {request.hi})")
        commit_index = self._commit_index()
        lo, hi = request.lo, min(request.hi, commit_index + 1)
        raw, error_text = b"", ""
        if lo < hi:
            try:
                raw = self._read_range(lo, hi, self._limits.answer_size_bytes_max)
            except PositionRangeError:
                pass  # Deleted by retention: answered like an unknown entry.
            except StoreError as error:
                error_text = f"{error.code}: {error}"
                self.failed_count += 1
        answer = pb.FetchedEntries(
            request_id=request.request_id,
            lo=lo,
            hi=lo + _entry_count(raw),
            error=error_text,
            commit_index=commit_index,
        ).SerializeToString()
        if not self._link.send(node, FrameKind.FETCHED_ENTRIES, answer, raw):
            self.failed_count += 1
        elif not error_text:
            self.answered_count += 1


def _entry_count(raw: bytes) -> int:
    at = count = 0
    while at < len(raw):
        at += unpack_header(raw, at).size_bytes
        count += 1
    assert at == len(raw), f"{len(raw)} bytes are not whole entries"
    return count
