"""The pictures of docs/console.md: `python -m tests.qlog.console.pictures`, with chromium.

Owns which page is shown with which content: three nodes, a topic with a little load, a group that
is behind, and a look under the microscope.
"""

import io
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from PIL import Image

from deploy.local import LocalCluster
from quorumlog import sync
from tests.node.processes import SingleNode
from tests.node.users_files import user_settings
from tests.qlog.console.chromium import started_browser, view
from tests.qlog.console.test_pages import console
from tests.qlog.running import Qlog

DIRECTORY: Final = Path("docs/pictures")
_ROUND_COUNT: Final = 300
"""Of 0.4 s each."""
_WIDTH: Final = 1180
_COLOR_COUNT: Final = 48


def main() -> None:
    """Take the pictures; about three minutes, since charts need some history."""
    with tempfile.TemporaryDirectory() as directory:
        cluster = LocalCluster.create(Path(directory) / "c")
        try:
            cluster.start()
            cluster.wait_ready()
            fill(cluster.bootstrap)
            with console(Qlog(cluster), "--mode", "full") as browser, started_browser() as driver:
                take(driver, f"http://{browser.address}")
                take_login(driver)
        finally:
            cluster.stop()


def fill(server: str) -> None:
    """Send with a changing rate, and consume a part."""
    with sync.connect(server) as client:
        client.admin.create_topic("orders", queue_count=4)
        producer = client.producer()
        for round_number in range(_ROUND_COUNT):
            for n in range(20 + round_number % 80 // 4):
                body = f'{{"order": {n}, "pie": "apple", "price": {n % 9 + 3}}}'
                producer.send_nowait("orders", body, key=f"order-{n}", tag="new")
            producer.flush()
            for queue in client.queue_offsets("orders"):
                offset = int(queue.end_offset * 0.97)
                client.admin.commit_offsets("billing", {("orders", queue.queue_id): offset})
            threading.Event().wait(0.4)


def take(driver: Any, base: str) -> None:
    """Store a picture of each page."""
    driver.get(f"{base}/topics/orders/tail")
    message = driver.find_element("css selector", "#live a").get_attribute("href")
    for name, address, height in (
        ("overview", "", 940),
        ("topics", "topics", 420),
        ("topic", "topics/orders", 760),
        ("messages", "topics/orders/messages?queue=0", 760),
        ("tail", "topics/orders/tail", 640),
        ("find", "topics/orders/find?key=order-3", 640),
        ("send", "topics/orders/send", 640),
        ("groups", "groups", 420),
        ("group", "groups/billing", 760),
        ("reset", "groups/billing/reset?topic=orders&position=end", 640),
        ("nodes", "nodes", 560),
        ("node", "nodes/1", 900),
        ("events", "events", 640),
        ("microscope", "microscope?node=1&other=2&kind=queue&at=orders:0:3", 860),
    ):
        shoot(driver, name, f"{base}/{address}", height)
    shoot(driver, "message", message, 860)
    shoot(driver, "overview-dark", base, 940, is_dark=True)
    shoot(driver, "overview-400", base, 940, width=400)


def take_login(driver: Any) -> None:
    """Store a picture of what a cluster with users shows first."""
    with tempfile.TemporaryDirectory() as directory:
        pages = {"console_listen": "127.0.0.1:0", **user_settings(Path(directory))}
        with SingleNode(Path(directory) / "n1", **pages) as node:
            shoot(driver, "login", f"http://{node.node_json()['console_address']}/", 420)


def shoot(
    driver: Any, name: str, address: str, height: int, *, width: int = _WIDTH, is_dark: bool = False
) -> None:
    """Store a picture of a page once its charts are drawn."""
    view(driver, width=width, height=height, is_dark=is_dark)
    driver.get(address)
    driver.execute_async_script("setTimeout(arguments[0], 1500)")
    image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    image.quantize(_COLOR_COUNT).save(DIRECTORY / f"console-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
