"""The console in a real browser: a killed leader, keys, dark mode, 400 px, axe-core."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from axe_core_python.selenium import Axe  # type: ignore[import-untyped]
from selenium.common.exceptions import NoAlertPresentException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from deploy.local import LocalCluster
from quorumlog import sync
from tests import missing
from tests.patience import wait_for
from tests.qlog.console.chromium import CHROMIUM, DRIVER, started_browser, view
from tests.qlog.console.test_pages import HOSTILE, console
from tests.qlog.running import Qlog

pytestmark = pytest.mark.long
SHOOT = "window.hit = 1"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster.create(tmp_path / "c")
    try:
        cluster.start()
        cluster.wait_ready()
        fill(cluster.bootstrap)
        yield cluster
    finally:
        cluster.stop()


def fill(server: str) -> None:
    """Store what each page needs, and what would run if a page let it."""
    harm = f"<script>{SHOOT}</script><img src=x onerror='{SHOOT}'>{HOSTILE}"
    with sync.connect(server) as client:
        client.admin.create_topic("orders", queue_count=2)
        producer = client.producer()
        for n in range(30):
            producer.send("orders", harm, key=f"k{n}<svg/onload={SHOOT}>", queue_id=0)
        client.admin.commit_offsets("billing", {("orders", 0): 10})


@pytest.fixture
def driver() -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        missing.program("chromium and chromedriver are not in PATH")
    with started_browser() as browser:
        yield browser


def requested(driver: Any) -> set[str]:
    """Return the addresses that the browser asked since the last look."""
    rows = [json.loads(row["message"])["message"] for row in driver.get_log("performance")]
    sent = [row["params"] for row in rows if row["method"] == "Network.requestWillBeSent"]
    return {one["request"]["url"] for one in sent}


def text_of(driver: Any, selector: str = "#live") -> str:
    return str(driver.execute_script(f"return document.querySelector('{selector}').innerText"))


def test_open_pages_follow_when_the_leader_is_killed(cluster: LocalCluster, driver: Any) -> None:
    qlog = Qlog(cluster)
    with console(qlog) as browser:
        base = f"http://{browser.address}"
        driver.get(f"{base}/")
        assert "All is well: 3 nodes" in text_of(driver)
        wait_for("it is live", lambda: text_of(driver, "#state") == "live")
        leader = cluster.leader_id()
        assert leader is not None
        cluster.kill(leader)
        wait_for("the page tells", lambda: f"node {leader} does not answer" in text_of(driver))
        wait_for("another leads", lambda: len(rows_with(driver, "tr.leader")) == 1)
        assert not rows_with(driver, f"tr.leader a[href='/nodes/{leader}']")
        cluster.start(leader)
        wait_for("it is back", lambda: "All is well: 3 nodes" in text_of(driver))
        driver.get(f"{base}/topics/orders/tail")
        with sync.connect(cluster.bootstrap) as client:
            client.producer().send("orders", "after all this")
        wait_for("the tail shows it", lambda: "after all this" in text_of(driver))
        cluster.stop()
        wait_for("it is stopped", lambda: " since " in text_of(driver, "#state"))
        driver.refresh()
        assert text_of(driver, "#state") == "", "what did not come is not live"


def test_each_form_works(cluster: LocalCluster, driver: Any) -> None:
    qlog = Qlog(cluster)
    with (
        sync.connect(cluster.bootstrap) as client,
        client.group_consumer("billing", "orders") as consumer,
    ):
        batch = consumer.next_batch()
        assert batch is not None
        consumer.reject(batch.messages[:1])
    with console(qlog, "--mode", "full") as browser:
        base = f"http://{browser.address}"

        def submit(path: str, button: str, told: str) -> None:
            driver.get(base + path)
            for box in driver.find_elements(By.NAME, "body"):
                box.send_keys("by hand")
            driver.find_element(By.XPATH, f"//button[contains(., '{button}')]").click()
            wait_for(told, lambda: told in text_of(driver, "main"))

        submit("/topics/orders/send", "Send one", "Done: stored in queue")
        reset = "/groups/billing/reset"
        submit(reset, "Show", "1 queue")
        submit(f"{reset}?topic=orders&position=first", "Move", "Done: ")
        submit("/groups/billing", "Send again", "was sent again")
    assert qlog.json("topic", "describe", "orders")["message_count"] == 32


def rows_with(driver: Any, selector: str) -> list[Any]:
    found: list[Any] = driver.find_elements(By.CSS_SELECTOR, f"#live {selector}")
    return found


def test_each_page_is_safe_small_dark_and_accessible(cluster: LocalCluster, driver: Any) -> None:
    qlog = Qlog(cluster)
    with console(qlog, "--mode", "full") as browser:
        base = f"http://{browser.address}"
        driver.get(f"{base}/topics/orders/tail")
        message = driver.find_element(By.CSS_SELECTOR, "#live a").get_attribute("href")
        paths = [
            *("/", "/events", "/topics", "/topics/orders", "/topics/orders/messages?queue=0"),
            *("/topics/orders/tail", "/topics/orders/find?key=k1", "/topics/orders/send"),
            *("/groups", "/groups/billing", "/groups/billing/reset?topic=orders&position=first"),
            *(
                "/microscope?node=1&other=2&at=3",
                "/nodes",
                "/nodes/1",
                message.removeprefix(base),
                "/nothing",
            ),
        ]
        grounds = set()
        for is_dark in (False, True):
            for path in paths:
                view(driver, width=1280, is_dark=is_dark)
                driver.get(base + path)
                with suppress(NoAlertPresentException):
                    raise AssertionError(f"{path}: {driver.switch_to.alert.text}")
                assert driver.execute_script("return window.hit") is None, path
                found = Axe().run(driver)["violations"]
                grave = [
                    (one["id"], [node["target"] for node in one["nodes"]])
                    for one in found
                    if one["impact"] in ("serious", "critical")
                ]
                assert not grave, (path, is_dark, grave)
                assert driver.find_elements(By.TAG_NAME, "h1"), path
                view(driver, width=400, is_dark=is_dark)
                widths = "return [document.documentElement.scrollWidth, innerWidth]"
                times = driver.find_elements(By.CSS_SELECTOR, ".time > [title], .time a > [title]")
                assert times or not path.endswith("/tail")
                for box in times:
                    assert re.fullmatch(r"\d\d:\d\d:\d\d", box.text), (path, box.text)
                    assert box.get_attribute("title").endswith(" UTC")
                wide, room = driver.execute_script(widths)
                assert wide <= room, (path, wide)
            color = "return getComputedStyle(document.body).backgroundColor"
            grounds.add(driver.execute_script(color))
        assert len(grounds) == 2
        outside = {url for url in requested(driver) if not url.startswith((base, "data:"))}
        assert outside <= {"about:blank"}
        errors = [
            row["message"] for row in driver.get_log("browser") if "404" not in row["message"]
        ]
        assert errors == []


def test_keys_lead_to_pages_and_to_the_search(cluster: LocalCluster, driver: Any) -> None:
    with console(Qlog(cluster)) as browser:
        driver.get(f"http://{browser.address}/")
        body = driver.find_element(By.TAG_NAME, "body")
        body.send_keys(Keys.TAB)
        assert driver.switch_to.active_element.text == "Skip to the content"
        for key, path in (("t", "/topics"), ("c", "/groups"), ("n", "/nodes"), ("o", "/")):
            driver.find_element(By.TAG_NAME, "body").send_keys("g", key)
            wait_for(path, lambda path=path: driver.current_url.endswith(path))  # type: ignore[misc]
        driver.get(f"http://{browser.address}/topics")
        driver.find_element(By.TAG_NAME, "body").send_keys("/")
        active = driver.switch_to.active_element
        assert active.get_attribute("name") == "find"
        active.send_keys("ord", Keys.ENTER)
        wait_for("found", lambda: driver.current_url.endswith("?find=ord"))
        assert "orders" in text_of(driver)
