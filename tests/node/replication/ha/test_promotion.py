"""When a promotion begins, and how its caller hears of the end."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from node.errors.ha import PromotionLostError, PromotionRefusedError
from node.replication.ha.core.machine import HaMachine
from node.replication.ha.core.types import HaBinding, HaRole, HaStanding
from node.replication.ha.driver import HaDriver
from tests.node.replication.ha.core.machines import SETTINGS, joined, machine

MS = 10_000
BOUND = HaBinding(4, 0, 7)


class Driver(HaDriver):
    """A driver of this machine alone."""

    is_draining = is_ready = is_stopped = False

    def __init__(self, machine: HaMachine, *, is_first_master: bool = False) -> None:
        applied = SimpleNamespace(is_missing=False)
        vars(self).update(machine=machine, node_id=1, group=SETTINGS, applied=applied)
        self.save_error, self.advice_refused_count = None, 0
        self.changed, self._is_first_master = asyncio.Event(), is_first_master

    def input(self, call: Callable[[HaMachine], object]) -> None:
        call(self.machine)


async def test_advice_for_an_epoch_that_was_reached_or_for_another_node_is_none() -> None:
    driver = Driver(machine(1, bound=BOUND))
    for number, master_id in ((3, 1), (4, 1), (5, 2)):
        driver.advise(number, master_id, 7)
        assert driver.term == 4
    driver.advise(5, 1, 7)
    assert (driver.term, driver.advice_refused_count) == (5, 0)
    assert "advice_refused" not in driver.machine.stats(), "the machine was not asked before"


async def test_a_promotion_ends_once_the_node_serves() -> None:
    driver = Driver(machine(1, bound=BOUND))
    call = asyncio.ensure_future(driver.promote(MS))
    await asyncio.sleep(0)
    driver.changed.set()
    await asyncio.sleep(0)
    assert not call.done()
    driver.is_ready = True
    driver.changed.set()
    assert await call == 5


async def test_a_promotion_is_lost_once_the_node_tries_no_more() -> None:
    driver = Driver(machine(1, bound=BOUND))
    call = asyncio.ensure_future(driver.promote(MS))
    await asyncio.sleep(0)
    assert (driver.machine.role, driver.term) == (HaRole.CANDIDATE, 5)
    driver.machine.advise(7, 1, 8)  # Under a higher number it goes on.
    driver.changed.set()
    await asyncio.sleep(0)
    assert not call.done()
    driver.machine.resign("enough")
    driver.changed.set()
    with pytest.raises(PromotionLostError):
        await asyncio.wait_for(call, MS / 2000)


async def test_what_the_machine_refuses_is_refused_with_its_reason() -> None:
    driver = Driver(machine(1, bound=BOUND, standing=HaStanding.JOINING))
    with pytest.raises(PromotionRefusedError, match="new disk"):
        await driver.promote(MS)
    assert driver.term == 4


async def test_a_nonce_fits_into_its_field_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames have eight bytes for it."""
    monkeypatch.setattr("secrets.randbits", lambda count: (1 << count) - 1)
    driver = Driver(machine(1), is_first_master=True)
    joined(driver.machine, "zero", 0)
    joined(driver.machine, "two", 2)
    driver._maybe_propose()
    driver._maybe_propose()
    assert driver.machine.state.bound == HaBinding(1, 1, (1 << 64) - 1)
