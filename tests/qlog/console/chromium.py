"""A real browser without a window, for tests and pictures."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_OPTIONS = (
    *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
    "disable-dev-shm-usage",
)


@contextmanager
def started_browser() -> Iterator[Any]:
    assert CHROMIUM is not None, "chromium is not in PATH"
    assert DRIVER is not None, "chromedriver is not in PATH"
    options = webdriver.ChromeOptions()
    for option in _OPTIONS:
        options.add_argument(f"--{option}")
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield made
    finally:
        made.quit()


def view(driver: Any, *, width: int, is_dark: bool, height: int = 900) -> None:
    """Show pages of this size, in pixels, and scheme from now on."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
