"""When a promotion begins, and how its caller hears of the end."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.errors.ha import PromotionLostError, PromotionRefusedError
from node.replication.ha.core.types import NO_EPOCH, HaRole, PromotionError
from node.replication.ha.promotion import Promotion

MS = 10_000


class Machine:
    """Notes its inputs."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self.role = HaRole.SLAVE
        self.nonces: list[int] = []
        self.advised: list[int] = []
        self.refusal: PromotionError | None = None
        self.state = SimpleNamespace(
            bound=SimpleNamespace(number=NO_EPOCH, master_id=0),
            highest_seen=NO_EPOCH,
            epochs=SimpleNamespace(last=SimpleNamespace(number=NO_EPOCH)),
            downs=lambda: [SimpleNamespace(promise=None)] * 2,
        )

    def check_promotion(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def promote(self, nonce: int) -> None:
        self.nonces.append(nonce)
        self.role = HaRole.CANDIDATE
        self._driver.term += 1

    def advise(self, number: int, master_id: int, nonce: int) -> None:
        self.advised.append(number)


class Driver:
    """What a promotion needs of the driver."""

    def __init__(self) -> None:
        self.node_id, self.term = 1, 4
        self.is_draining = self.is_ready = False
        self.save_error = None
        self.applied = SimpleNamespace(is_missing=False)
        self.group = SimpleNamespace(replica_ids=(1, 2, 3), fence_count=2)
        self.machine = Machine(self)

    def input(self, call: Callable[[Any], None]) -> None:
        call(self.machine)

    def check_running(self) -> None:
        pass


def made(*, is_first_master: bool = False) -> tuple[Driver, Promotion]:
    driver = Driver()
    return driver, Promotion(cast(Any, driver), is_first_master=is_first_master)


async def test_advice_for_an_epoch_that_was_reached_or_for_another_node_is_none() -> None:
    driver, promotion = made()
    promotion.advise(3, 1, 7)
    promotion.advise(4, 1, 7)
    promotion.advise(5, 2, 7)
    assert driver.machine.advised == []
    promotion.advise(5, 1, 7)
    assert (driver.machine.advised, promotion.advice_refused_count) == ([5], 0)


async def test_a_promotion_ends_once_the_node_serves() -> None:
    driver, promotion = made()
    call = asyncio.ensure_future(promotion.promote(MS))
    await asyncio.sleep(0)
    promotion.changed.set()
    await asyncio.sleep(0)
    assert not call.done()
    driver.machine.role, driver.is_ready = HaRole.MASTER, True
    promotion.changed.set()
    assert await call == 5


@pytest.mark.parametrize(
    ("role", "term"),
    [
        (HaRole.SLAVE, 5),  # It resigned.
        (HaRole.CANDIDATE, 6),  # Advice made it begin anew: the epoch that was asked for is over.
    ],
)
async def test_a_promotion_that_is_lost_is_told(role: HaRole, term: int) -> None:
    driver, promotion = made()
    call = asyncio.ensure_future(promotion.promote(MS))
    await asyncio.sleep(0)
    assert (driver.machine.role, driver.term) == (HaRole.CANDIDATE, 5)
    driver.machine.role, driver.term = role, term
    promotion.changed.set()
    with pytest.raises(PromotionLostError):
        await asyncio.wait_for(call, MS / 2000)


async def test_what_the_machine_refuses_is_refused_with_its_reason() -> None:
    driver, promotion = made()
    driver.machine.refusal = PromotionError("not full")
    with pytest.raises(PromotionRefusedError, match="not full"):
        await promotion.promote(MS)
    assert driver.machine.nonces == []


async def test_a_nonce_fits_into_its_field_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames have eight bytes for it."""
    monkeypatch.setattr("secrets.randbits", lambda count: (1 << count) - 1)

    driver, promotion = made(is_first_master=True)
    promotion.maybe_propose()
    promotion.maybe_propose()
    (nonce,) = driver.machine.nonces
    assert nonce == (1 << 64) - 1
