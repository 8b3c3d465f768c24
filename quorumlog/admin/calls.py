"""The calls of an admin: to the leader of a broker group, to all leaders at once, to one node.

Owns the choice of the nodes and the deadlines; must not know the content of a call. Each
of several broker groups holds its share of topics and of the offsets of consumer groups. A call for
the whole cluster goes to each group, and the answers are merged.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from quorumlog.cluster.broker_groups import BrokerGroup, BrokerGroups
from quorumlog.cluster.calls import beside
from quorumlog.cluster.retry import Deadline
from quorumlog.errors import NotFoundError, QuorumlogError, UnknownTopicError
from quorumlog.records.queues import Queue

AWAY_MS: Final = 2_000  # For a broker group that is marked away; the others have the client's.
ANSWER_MS: Final = 1_000

Answers = dict[str, Any]
"""Answers by the name of the broker group."""


class AdminCalls:
    """The calls that all parts of an `Admin` are made of."""

    def __init__(self, groups: BrokerGroups, timeout_ms: int) -> None:
        self._groups, self._timeout_ms = groups, timeout_ms

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_ms)

    async def _lead(
        self,
        group: BrokerGroup,
        request: Any,
        *,
        is_repeatable: bool = True,
        is_read: bool = False,
        deadline: Deadline | None = None,
    ) -> Any:
        """Call the leader of a broker group and return its answer. `deadline` is that of a call
        with further steps, here as in the other methods."""
        return await group.calls.leader(
            request,
            deadline or self._deadline(),
            is_repeatable=is_repeatable,
            is_read=is_read,
        )

    async def _each(
        self,
        request: Any,
        *,
        is_repeatable: bool = True,
        is_read: bool = True,
        may_be_away: bool = True,
        deadline: Deadline | None = None,
        requests: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Answers, list[str]]:
        """Call the leaders of all broker groups; return the answers, and the groups without one.

        `requests` has those of groups that get another one, by name.
        A group that does not know the topic or consumer group is left out if another one does.
        Raises the first error that is not retryable; any error if no group answers or `may_be_away`
        is false.
        """
        groups, deadline = self._groups.all, deadline or self._deadline()
        away_ms = min(AWAY_MS, deadline.remaining_ms)
        questions = (
            self._lead(
                group,
                requests.get(group.name, request),
                is_repeatable=is_repeatable,
                is_read=is_read,
                deadline=Deadline(away_ms) if group.is_away else deadline,
            )
            for group in groups
        )
        results = await asyncio.gather(*questions, return_exceptions=True)
        answers: Answers = {}
        away: list[str] = []
        lacking: list[BaseException] = []
        failed: list[BaseException] = []
        for group, result in zip(groups, results, strict=True):
            if isinstance(result, UnknownTopicError | NotFoundError):
                lacking.append(result)
            elif isinstance(result, BaseException):
                if not isinstance(result, QuorumlogError) or not result.retryable:
                    raise result if is_read else beside(result, results)
                failed.append(result)
                away.append(group.name)
                if not self._groups.is_single:
                    self._groups.suspect(group)
            else:
                answers[group.name] = result
        if failed and not (answers and may_be_away):
            raise failed[0] if is_read else beside(failed[0], results)
        if not answers:
            raise lacking[0]
        return answers, away

    async def _group_of(self, node_id: int, deadline: Deadline, group: str = "") -> BrokerGroup:
        """Return the broker group of a node; refresh all groups first if none lists the node."""
        if node_id and not any(node_id in known.router.nodes for known in self._groups.all):
            await self._groups.refresh(deadline)
        return self._groups.of_node(node_id) if node_id and not group else self._groups.get(group)

    async def _at(
        self,
        node_id: int | None,
        request: Any,
        group: str = "",
        *,
        is_read: bool = True,
        timeout_ms: int = 0,
        deadline: Deadline | None = None,
    ) -> tuple[BrokerGroup, Any]:
        """Call a node, or without a node id the leader of a group; return the group, too.

        `timeout_ms` bounds the call and its repetitions if it is shorter than the client's own; the
        node, which has the same limit, gets a moment more to say what it found.
        """
        deadline = deadline or Deadline(min(timeout_ms or self._timeout_ms, self._timeout_ms))
        answer_ms = ANSWER_MS if timeout_ms else 0
        if node_id is None:
            at = self._groups.get(group)
            await at.router.refresh(deadline)  # Followers answer this, too.
            node = await at.router.leader(deadline)
        else:
            at = await self._group_of(node_id, deadline)
            node = at.router.node(node_id)
        return at, await at.calls.node(
            node, request, deadline, is_read=is_read, answer_ms=answer_ms
        )

    def _by_group(self, queues: Sequence[Queue]) -> dict[BrokerGroup, list[Queue]]:
        queues_of: dict[BrokerGroup, list[Queue]] = {}
        for queue in queues:
            queues_of.setdefault(self._groups.get(queue.broker_group), []).append(queue)
        return queues_of
