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
from tests.qlog.console.test_browser import started_browser, view
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
    pages = {
        "overview": (f"{base}/", False, 940),
        "overview-dark": (f"{base}/", True, 940),
        "topic": (f"{base}/topics/orders/messages?queue=0", False, 760),
        "message": (message, False, 860),
        "group": (f"{base}/groups/billing", False, 760),
        "microscope": (f"{base}/microscope?node=1&other=2&kind=queue&at=orders:0:3", False, 860),
        "node": (f"{base}/nodes/1", False, 900),
    }
    for name, (address, is_dark, height) in pages.items():
        view(driver, width=_WIDTH, height=height, is_dark=is_dark)
        driver.get(address)
        driver.execute_async_script("setTimeout(arguments[0], 1500)")
        image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
        image.quantize(_COLOR_COUNT).save(DIRECTORY / f"console-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
