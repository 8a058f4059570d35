"""The page in a real browser: it loads, its numbers move, a migration appears, a wrong token is refused.

Needs Chromium and its driver; without them these tests are skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from anabranch.console.runs import LiveRun
from anabranch.console.server import Console
from tests.unit.console.scripted import BEGAN, DECISION, ScriptedHandle

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def handle() -> ScriptedHandle:
    handle = ScriptedHandle()
    handle.add()
    return handle


@pytest.fixture
def at(browser: webdriver.Chrome, handle: ScriptedHandle) -> Iterator[webdriver.Chrome]:
    run = LiveRun(handle)
    with Console(lambda: [run], token="secret") as console:
        browser.set_window_size(1200, 900)
        browser.get(console.url)
        until(browser, lambda: "running, batch 0" in text(browser, "status"))
        yield browser
        browser.get("about:blank")


def until(browser: webdriver.Chrome, holds: Callable[[], bool]) -> None:
    WebDriverWait(browser, 60).until(lambda _: holds())


def text(browser: webdriver.Chrome, element: str) -> str:
    return str(browser.find_element("id", element).text)


def complaints(browser: webdriver.Chrome) -> list[str]:
    """Errors of the page's scripts, and requests that its policy refused."""
    return [str(entry["message"]) for entry in browser.get_log("browser") if entry["source"] != "network"]  # type: ignore[no-untyped-call]


def test_the_page_loads_and_its_numbers_move(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    assert "1.50 s" in text(at, "tiles")
    assert "1\nlate rows" in text(at, "tiles")
    handle.add()
    until(at, lambda: "running, batch 1" in text(at, "status"))
    until(at, lambda: "2\nlate rows" in text(at, "tiles"))
    assert len(at.find_elements("css selector", ".charts canvas")) == 4
    assert complaints(at) == []


def test_a_migration_appears_and_opens_to_its_reasons(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    handle.add(records=[DECISION])
    handle.add(records=[BEGAN])
    at.find_element("tag name", "body").send_keys("3")
    until(at, lambda: "((a b) c) → (a (b c)) by moving-state" in text(at, "records"))
    for summary in at.find_elements("css selector", ".record > summary"):
        summary.click()
    until(at, lambda: "Looked because ten batches have passed" in text(at, "records"))
    assert complaints(at) == []


def test_the_plan_is_drawn_and_only_the_right_token_changes_it(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    at.find_element("id", "tab-plan").click()
    until(at, lambda: "40 lookups, 10 kept" in text(at, "picture"))
    token, plan = at.find_element("id", "token"), at.find_element("id", "new-plan")
    token.send_keys("wrong")
    plan.send_keys("(a (b c))")
    change = at.find_element("css selector", "[data-action=migrate]")
    change.click()
    until(at, lambda: text(at, "answer") == "the token is wrong")
    assert handle.asked == []
    token.clear()
    token.send_keys("secret")
    change.click()
    until(at, lambda: "next batch" in text(at, "answer"))
    assert handle.asked == [("migrate", "(a (b c))", "auto", None, None)]


def test_the_page_fits_a_phone(at: webdriver.Chrome, tmp_path: Path) -> None:
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    at.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for tab in ("tab-now", "tab-plan", "tab-why"):
            at.find_element("id", tab).click()
            assert at.execute_script("return document.documentElement.scrollWidth") <= 390, tab
    finally:
        at.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_an_error_of_a_change_is_shown_in_words(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    at.find_element("id", "tab-plan").click()
    at.find_element("id", "token").send_keys("secret")
    at.find_element("id", "new-plan").send_keys("(a z)")
    at.find_element("css selector", "[data-action=migrate]").click()
    until(at, lambda: "'z' is not a relation of the query" in text(at, "answer"))


@pytest.mark.parametrize(
    ("action", "fields", "asked"),
    [
        ("scale", {"slot-count": "3"}, ("scale", 3)),
        ("move", {"move-groups": "0-2, 12", "move-to": "1"}, ("move", [0, 1, 2, 12], 1)),
        # As it was written: neither is a number of JavaScript.
        ("split", {"key-value": "9007199254740993", "key-name": "a.k"}, ("split", "9007199254740993", "a.k")),
        ("unite", {"key-value": "007"}, ("unite", "007", None)),
        ("freeze", {}, ("freeze", True)),
        ("thaw", {}, ("freeze", False)),
        ("rebalance", {}, ("rebalance",)),
        ("abort", {}, ("abort", None)),
    ],
)
def test_every_button_asks_for_what_it_says(
    at: webdriver.Chrome, handle: ScriptedHandle, action: str, fields: dict[str, str], asked: tuple[object, ...]
) -> None:
    press(at, action, {"token": "secret", **fields})
    until(at, lambda: "next batch" in text(at, "answer"))
    assert handle.asked == [asked]


@pytest.mark.parametrize(
    ("action", "fields", "words"),
    [
        ("migrate", {}, "write a plan"),
        ("scale", {"slot-count": "many"}, "write a number of slots"),
        ("move", {"move-groups": "0-", "move-to": "1"}, "write partition groups"),
        ("move", {"move-groups": "0-7"}, "write the slot"),
        ("split", {"key-name": "a.k"}, "write a value"),
    ],
)
def test_a_button_says_what_is_missing(
    at: webdriver.Chrome, handle: ScriptedHandle, action: str, fields: dict[str, str], words: str
) -> None:
    press(at, action, {"token": "secret", **fields})
    until(at, lambda: words in text(at, "answer"))
    assert handle.asked == []


def press(at: webdriver.Chrome, action: str, fields: dict[str, str]) -> None:
    at.find_element("id", "tab-plan").click()
    for field, value in fields.items():
        at.find_element("id", field).send_keys(value)
    at.find_element("css selector", f"[data-action={action}]").click()
