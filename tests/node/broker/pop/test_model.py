"""Random walks through pop, with leaders lost between any two steps, against a small model.

The model knows what every caller was told and nothing of windows. An answer that was lost leaves
open whether it happened; everything else is certain.
"""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.config.limits import Limits
from node.errors.common import NodeError
from node.runtime.accounts import Accounts, Kind, on_behalf_of
from tests.node.broker.pop.pop_calls import (
    GROUP,
    Got,
    ack,
    bodies,
    give_up,
    hide,
    offset_of,
    part,
    pass_time,
    receive,
    send,
)
from tests.node.broker_fakes import Fixture, configure, hidden, node_at
from tests.seeds import some_of

QUEUES = 2
RETRIES = 3
INVISIBLE_MS = 1_000


class Model:
    """What the callers know."""

    def __init__(self, *, is_fifo: bool) -> None:
        self.is_fifo = is_fifo
        self.sent: dict[str, int] = {}
        """Body to queue id, in the order of sending."""
        self.acked: set[str] = set()
        self.maybe_done: set[str] = set()
        """An acknowledgement or a surrender had no answer."""
        self.given_up: set[str] = set()
        """Somebody asked for it, with success or without."""
        self.surrendered: set[str] = set()
        self.counts: dict[str, int] = {}
        self.invisible_until: dict[str, int] = {}
        self.held: dict[str, Got] = {}
        self.known: dict[str, Got] = {}
        """Everything that was ever received."""

    def check_order(self, found: list[Got], in_flight: set[tuple[int, int]]) -> None:
        """Whoever gets a message has all before it of its message group done, or in this answer."""
        got = bodies(found)
        for at, one in enumerate(found):
            for other in self.known.values():
                if other.queue_id != one.queue_id or key_of(other.body) != key_of(one.body):
                    continue
                if other.offset > one.offset:
                    assert one.count > 1, f"{one} for the first time after {other}"
                elif other.offset < one.offset and other.body not in got[:at]:
                    is_done = (other.queue_id, other.offset) not in in_flight
                    assert is_done, f"{one} while {other} is in flight"

    def on_received(
        self, found: list[Got], asked_ms: int, now_ms: int, in_flight: set[tuple[int, int]]
    ) -> None:
        got = [*bodies(found)]
        assert len(set(got)) == len(got)
        for one in found:
            body = one.body
            assert body not in self.acked, f"{body} was acknowledged"
            assert body not in self.surrendered, f"{body} was given up"
            assert now_ms >= self.invisible_until.get(body, 0), f"{body} is invisible"
            assert one.count > self.counts.get(body, 0), f"{body} came {one.count} times"
            assert one.count <= RETRIES + 1
            self.counts[body] = one.count
            self.invisible_until[body] = asked_ms + INVISIBLE_MS
            self.held[body] = one
        if self.is_fifo:
            self.check_order(found, in_flight)
        self.known.update((one.body, one) for one in found)


def key_of(body: str) -> str:
    return body.rstrip("0123456789")


class Walk:
    """One walk over one broker."""

    def __init__(self, node: Fixture, seed: int) -> None:
        self.node, self.random = node, random.Random(seed)
        self.model = Model(is_fifo=seed % 2 == 0)
        self.number = 0
        self.hides = 0
        self.accounts = Accounts()
        self.callers = [self.accounts.open(host) for host in ("10.0.0.1", "10.0.0.2")]
        self.has_known_takers = True
        """A new leader does not know them."""

    # --- Steps. Each of them ends with an answer, or with an error and an open outcome ---

    async def send(self) -> None:
        count, queue_id = self.random.randint(1, 4), self.random.randrange(QUEUES)
        new = [f"{self.random.choice('abc')}{self.number + n}" for n in range(count)]
        self.number += count
        try:
            await send(self.node, *new, queue_id=queue_id)
        except NodeError:
            return  # Then it may be there; it is looked up in the end.
        self.model.sent.update(dict.fromkeys(new, queue_id))

    async def receive(self) -> None:
        count, asked_ms = self.random.randint(1, 5), self.node.clock.now_ms
        try:
            with on_behalf_of(self.random.choice(self.callers)):
                deliveries = await receive(
                    self.node, count, invisible_ms=INVISIBLE_MS, is_fifo=self.model.is_fifo
                )
        except NodeError:
            return
        for one in deliveries:
            self.model.sent.setdefault(one.body, one.queue_id)
        windows = part(self.node).windows
        in_flight = {(key[2], offset) for key, window in windows.items() for offset in window.items}
        self.model.on_received(deliveries, asked_ms, self.node.clock.now_ms, in_flight)

    def some_held(self) -> Got | None:
        held = list(self.model.held.values())
        return self.random.choice(held) if held else None

    async def ack(self, held: Got | None = None) -> None:
        held, model = held or self.some_held(), self.model
        if held is None:
            return
        try:
            stale_count = await ack(self.node, held)
        except NodeError:
            model.maybe_done.add(held.body)
            return
        is_over = self.node.clock.now_ms >= model.invisible_until[held.body]
        model.held.pop(held.body, None)
        if stale_count:
            assert is_over or held.body in model.given_up, f"{held.body} was stale too early"
        elif held.body in model.given_up or is_over:
            model.maybe_done.add(held.body)  # Or it was dead by then, which is as good as done.
        else:
            model.acked.add(held.body)

    async def hide(self) -> None:
        held, ms = self.some_held(), self.random.choice((0, 500, 3_000))
        if held is None:
            return
        self.model.invisible_until[held.body] = 0
        self.hides += 1
        number, now_ms = self.hides, self.node.clock.now_ms
        try:
            await hide(self.node, held, ms)
        except NodeError:
            return
        # Of two at once nobody knows which came last.
        if self.model.held.get(held.body) == held and self.hides == number:
            self.model.invisible_until[held.body] = now_ms + ms

    async def give_up(self) -> None:
        held = self.some_held()
        if held is None:
            return
        self.model.maybe_done.add(held.body)
        self.model.given_up.add(held.body)
        try:
            await give_up(self.node, held)
        except NodeError:
            return
        self.model.surrendered.add(held.body)
        self.model.held.pop(held.body, None)

    def step(self) -> Any:
        steps = [self.send, self.receive, self.receive, self.ack, self.ack, self.hide]
        return self.random.choice([*steps, self.give_up])()

    # --- The cluster ---

    async def change_leader(self) -> None:
        """Lose the leader while steps are under way; the next one keeps some of what they wrote."""
        driver = self.node.driver
        driver.is_holding = True
        self.has_known_takers = False
        tasks = [asyncio.create_task(self.step()) for _ in range(self.random.randint(1, 4))]
        for _ in range(self.random.randint(0, 6)):
            await asyncio.sleep(0)
        if self.random.random() < 0.3:
            pass_time(self.node, 2_000)
            await asyncio.sleep(0)
        driver.commit(self.random.randint(0, len(driver.pending)) or None)
        driver.lose()
        driver.decide(
            self.random.randint(0, len(driver.pending)), is_known=self.random.random() < 0.5
        )
        await asyncio.sleep(0)  # What was submitted in this turn finds that nobody leads.
        driver.lead(is_ready=False)
        driver.is_holding = False
        driver.get_ready()
        await asyncio.gather(*tasks)
        pass_time(self.node, 1)  # Members of groups had time to speak.
        driver.release()

    async def run(self, step_count: int) -> None:
        for _ in range(step_count):
            chance = self.random.random()
            if chance < 0.15:
                await self.change_leader()
            elif chance < 0.3:
                pass_time(self.node, self.random.choice((100, 600, 1_500)))
            else:
                await self.step()
            self.check()

    def check(self) -> None:
        """What is in flight fits to itself."""
        windows = part(self.node).windows
        assert part(self.node).in_flight_count == sum(len(w.items) for w in windows.values())
        for (_, _, queue_id), window in windows.items():
            assert window.items, "an empty window"
            assert list(window.items) == sorted(window.items)
            assert offset_of(self.node, queue_id) == window.floor
        if self.has_known_takers:
            assert self.accounts.held(Kind.DELIVERIES)[0] >= part(self.node).in_flight_count

    async def finish(self) -> None:
        """Everything is done in the end: acknowledged, or among the dead letters, and not both."""
        for _ in range(16):
            pass_time(self.node, 4_000)
            for _ in range(50):  # What is dead is moved beside it.
                await asyncio.sleep(0)
            await self.receive()
            for one in list(self.model.held.values()):
                await self.ack(one)
            if not part(self.node).windows and self.is_read():
                break
        assert not part(self.node).windows, "something stays in flight for ever"
        assert self.accounts.held(Kind.DELIVERIES)[0] == 0
        dead = [m.body.decode() for m in hidden(self.node, f"%DLQ%{GROUP}")]
        assert len(set(dead)) == len(dead), "dead twice"
        everything = {
            m.body.decode() for q in range(QUEUES) for m in hidden(self.node, "orders", q)
        }
        assert everything >= self.model.sent.keys()
        done = self.model.acked | set(dead)
        assert everything - done <= self.model.maybe_done, "lost"
        assert self.model.surrendered <= set(dead)
        assert not self.model.acked & set(dead), "acknowledged, and dead"

    def is_read(self) -> bool:
        state, store = self.node.machine.state, self.node.log.store
        offsets = state.groups.get(GROUP, {}).get("orders", {})
        return all(
            store.reads.queue_range("orders", q)[1] == offsets.get(q, 0) for q in range(QUEUES)
        )


@pytest.mark.parametrize("seed", some_of(range(16), 4))
async def test_a_random_walk_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    limits = replace(Limits(), group_settle_ms=1)
    async with node_at(tmp_path, topics={"orders": QUEUES}, limits=limits) as node:
        await configure(node, GROUP, retry_count_max=RETRIES)
        walk = Walk(node, seed)
        await walk.run(150)
        before = node.machine.image()
    async with node_at(tmp_path, topics={}) as node:
        after = node.machine.image()
        assert after.tables["pop"] == before.tables["pop"], "the log says it all"
        assert after.groups == before.groups
        node.clock.now_ms = walk.node.clock.now_ms
        walk.node = node
        await walk.finish()
