"""When a promotion begins, and how its caller hears of the end."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.errors.ha import PromotionLostError, PromotionRefusedError
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.types import HaBinding, HaRole, HaStanding
from node.replication.ha.promotion import Promotion
from tests.node.replication.ha.core.machines import SETTINGS, joined, machine

MS = 10_000
BOUND = HaBinding(4, 0, 7)


class Driver:
    """What a promotion needs of the driver."""

    node_id, group = 1, SETTINGS
    is_draining = is_ready = False
    save_error, applied = None, SimpleNamespace(is_missing=False)

    def __init__(self, replica: HaMachine) -> None:
        self.machine = replica

    @property
    def term(self) -> int:
        return self.machine.state.bound.number

    def input(self, call: Callable[[HaMachine], object]) -> None:
        call(self.machine)

    def check_running(self) -> None:
        pass


def made(replica: HaMachine, *, is_first_master: bool = False) -> tuple[Driver, Promotion]:
    driver = Driver(replica)
    return driver, Promotion(cast(Any, driver), is_first_master=is_first_master)


async def test_advice_for_an_epoch_that_was_reached_or_for_another_node_is_none() -> None:
    driver, promotion = made(machine(1, bound=BOUND))
    for number, master_id in ((3, 1), (4, 1), (5, 2)):
        promotion.advise(number, master_id, 7)
        assert driver.term == 4
    promotion.advise(5, 1, 7)
    assert (driver.term, promotion.advice_refused_count) == (5, 0)
    assert "advice_refused" not in driver.machine.stats(), "the machine was not asked before"


async def test_a_promotion_ends_once_the_node_serves() -> None:
    driver, promotion = made(machine(1, bound=BOUND))
    call = asyncio.ensure_future(promotion.promote(MS))
    await asyncio.sleep(0)
    promotion.changed.set()
    await asyncio.sleep(0)
    assert not call.done()
    driver.is_ready = True
    promotion.changed.set()
    assert await call == 5


async def test_a_promotion_that_is_lost_is_told() -> None:
    """It resigned; or advice made it begin anew: the epoch that was asked for is over."""
    driver, promotion = made(machine(1, bound=BOUND))
    losses: list[Callable[[], object]] = [
        lambda: driver.machine.resign("enough"),
        lambda: driver.machine.advise(7, 1, 8),
    ]
    for number, lose in enumerate(losses, 5):
        call = asyncio.ensure_future(promotion.promote(MS))
        await asyncio.sleep(0)
        assert (driver.machine.role, driver.term) == (HaRole.CANDIDATE, number)
        lose()
        promotion.changed.set()
        with pytest.raises(PromotionLostError):
            await asyncio.wait_for(call, MS / 2000)


async def test_what_the_machine_refuses_is_refused_with_its_reason() -> None:
    driver, promotion = made(machine(1, bound=BOUND, standing=HaStanding.JOINING))
    with pytest.raises(PromotionRefusedError, match="new disk"):
        await promotion.promote(MS)
    assert driver.term == 4


async def test_a_nonce_fits_into_its_field_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames have eight bytes for it."""
    monkeypatch.setattr("secrets.randbits", lambda count: (1 << count) - 1)
    driver, promotion = made(machine(1), is_first_master=True)
    joined(driver.machine, "zero", 0)
    joined(driver.machine, "two", 2)
    promotion.maybe_propose()
    promotion.maybe_propose()
    assert driver.machine.state.bound == HaBinding(1, 1, (1 << 64) - 1)
