"""The page in a real browser: its numbers move, changes appear, only a token shows controls, silence turns it grey.

Needs Chromium and its driver; without them these tests are skipped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.ui import WebDriverWait

from anabranch.console.runs import LiveRun
from anabranch.console.server import Console
from tests.unit.console.scripted import BEGAN, BEGAN_AT, DECISION, START, ScriptedHandle

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
    with opened(browser, handle, token="secret"):
        yield browser


@contextmanager
def opened(browser: webdriver.Chrome, handle: ScriptedHandle, token: str | None = None) -> Iterator[Console]:
    run = LiveRun(handle)
    # A port of the system's choice: no other console on this machine takes it when this one closes.
    with Console(lambda: [run], port=0, token=token, now=handle.now) as console:
        browser.set_window_size(1200, 900)
        browser.get(console.url)
        until(browser, lambda: "running, batch 0" in text(browser, "status"))
        yield console
        browser.get("about:blank")


@contextmanager
def screen(browser: webdriver.Chrome, width: int, height: int) -> Iterator[None]:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < height}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def phone(browser: webdriver.Chrome) -> AbstractContextManager[None]:
    return screen(browser, 390, 844)


def until(browser: webdriver.Chrome, holds: Callable[[], bool]) -> None:
    WebDriverWait(browser, 60).until(lambda _: holds())


def text(browser: webdriver.Chrome, element: str) -> str:
    return str(browser.find_element("id", element).text)


def complaints(browser: webdriver.Chrome) -> list[str]:
    """Errors of the page's scripts, and requests that its policy refused."""
    return [str(entry["message"]) for entry in browser.get_log("browser") if entry["source"] != "network"]  # type: ignore[no-untyped-call]


def test_the_page_loads_and_its_numbers_move(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    assert "1.5 s" in text(at, "tiles")
    assert "1\nlate rows: a 1" in text(at, "tiles")
    assert "46.7\nrows/s in" in text(at, "tiles")  # 70 rows in 1.5 seconds
    handle.add()
    until(at, lambda: "running, batch 1" in text(at, "status"))
    until(at, lambda: "2\nlate rows: a 2" in text(at, "tiles"))
    assert "40\nrows/s in" in text(at, "tiles")  # 140 rows in 3.5 seconds
    assert "a 22.9 11 s 2 2" in text(at, "streams")
    assert "0.171" in text(at, "slots")
    assert len(at.find_elements("css selector", ".charts canvas")) == 4
    assert complaints(at) == []


def test_a_legend_has_the_latest_values_while_nobody_points_at_a_curve(
    at: webdriver.Chrome, handle: ScriptedHandle
) -> None:
    def shown(batch: int) -> str:
        return datetime.fromtimestamp(BEGAN_AT + 2 * batch + 1).strftime("%H:%M:%S")

    def legends() -> list[str]:
        return [each.text for each in at.find_elements("css selector", ".u-legend")]

    until(at, lambda: len(legends()) == 4 and all(shown(0) in each for each in legends()))
    handle.add()
    until(at, lambda: all(shown(1) in each for each in legends()))
    assert not any("–" in each for each in legends())
    # A curve that is pointed at shows its values there, and the latest ones afterwards.
    chart = at.find_element("css selector", "#chart-state .u-over")
    ActionChains(at).move_to_element_with_offset(chart, 3 - chart.rect["width"] // 2, 0).perform()
    until(at, lambda: shown(0) in legends()[2])
    ActionChains(at).move_to_element(at.find_element("tag name", "h1")).perform()
    until(at, lambda: shown(1) in legends()[2])


def test_an_idle_query_says_since_when(browser: webdriver.Chrome) -> None:
    handle = ScriptedHandle()
    handle.add()
    handle.status["isDataAvailable"] = False
    run, ended = LiveRun(handle), datetime.fromtimestamp(BEGAN_AT + 1.5).strftime("%H:%M:%S")
    with Console(lambda: [run], now=lambda: handle.now() + 90) as console:
        browser.get(console.url)
        until(browser, lambda: text(browser, "notice") == f"Idle since {ended}: no new rows.")
        assert "0\nrows/s in: idle" in text(browser, "tiles")
        browser.get("about:blank")


def test_a_page_without_an_answer_turns_grey_and_says_since_when(
    browser: webdriver.Chrome, handle: ScriptedHandle
) -> None:
    with opened(browser, handle) as console:
        assert not browser.find_element("id", "notice").is_displayed()
        console.close()
        until(browser, lambda: "No answer from the console since" in text(browser, "notice"))
        assert "grayscale" in browser.find_element("tag name", "main").value_of_css_property("filter")
        again = LiveRun(handle)
        with Console(lambda: [again], port=console.port, now=handle.now):
            until(browser, lambda: not browser.find_element("id", "notice").is_displayed())
            assert browser.find_element("tag name", "main").value_of_css_property("filter") == "none"


def test_a_failed_query_says_why(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    handle.isActive, handle.error = False, ValueError("no space")
    until(at, lambda: text(at, "notice") == "The query failed: no space")


def test_without_a_token_there_are_no_controls(browser: webdriver.Chrome, handle: ScriptedHandle) -> None:
    with opened(browser, handle, token=None):
        browser.find_element("id", "tab-plan").click()
        until(browser, lambda: "lookups/s" in text(browser, "picture"))
        assert not any(each.is_displayed() for each in browser.find_elements("css selector", "form, form *"))


def test_controls_appear_with_the_token(at: webdriver.Chrome) -> None:
    at.find_element("id", "tab-plan").click()
    token, controls = at.find_element("id", "token"), at.find_element("id", "controls")
    assert (token.is_displayed(), controls.is_displayed()) == (True, False)
    token.send_keys("s")
    assert controls.is_displayed()


def test_why_begins_with_the_first_plan(browser: webdriver.Chrome) -> None:
    handle = ScriptedHandle()
    handle.add(records=[START])
    with opened(browser, handle):
        browser.find_element("id", "tab-why").click()
        until(browser, lambda: text(browser, "records") == "batch 0\nstarted with ((a b) c): needs the least CPU")
        browser.find_element("css selector", ".record > summary").click()
        until(browser, lambda: "needs twice the CPU" in text(browser, "records"))


@pytest.mark.parametrize(("scheme", "ink"), [("light", "rgb(31, 42, 51)"), ("dark", "rgb(232, 237, 241)")])
def test_the_plan_has_the_colours_of_the_page(at: webdriver.Chrome, scheme: str, ink: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    at.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        at.find_element("id", "tab-plan").click()
        until(at, lambda: "lookups/s" in text(at, "picture"))
        assert at.execute_script("return getComputedStyle(document.body).color") == ink
        fills = at.execute_script(
            "return [...document.querySelectorAll('#picture rect')].map((each) => getComputedStyle(each).fill)"
        )
        card = at.execute_script("return getComputedStyle(document.querySelector('#picture')).backgroundColor")
        assert fills[0] == card  # the ground of the picture
        assert ink in fills  # the box of the results
        pale = [sum(map(int, re.findall(r"\d+", fill)[:3])) > 3 * 128 for fill in fills if fill != ink]
        assert set(pale) == {scheme == "light"}
    finally:
        at.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_migration_appears_and_opens_to_its_reasons(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    handle.add(records=[DECISION])
    handle.add(records=[BEGAN])
    at.find_element("tag name", "body").send_keys("3")
    until(at, lambda: "((a b) c) → (a (b c)) by moving-state" in text(at, "records"))
    for summary in at.find_elements("css selector", ".record > summary"):
        summary.click()
    until(at, lambda: "Looked because ten batches have passed" in text(at, "records"))
    assert complaints(at) == []


def test_a_migration_in_progress_is_announced(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    handle.add(migrating=(1,))
    until(at, lambda: text(at, "notice") == "The plan is changing in slot 1.")
    handle.add(records=[BEGAN], migrating=(0, 1))
    until(at, lambda: text(at, "notice") == "The plan is changing to (a (b c)) in slots 0, 1.")
    handle.add(records=[{**BEGAN, "phase": "ended", "plan": "(a (b c))"}])
    until(at, lambda: not at.find_element("id", "notice").is_displayed())
    at.find_element("id", "tab-why").click()
    until(at, lambda: "change ended: the plan is (a (b c))" in text(at, "records"))


def test_the_bars_of_the_slots_begin_below_one_another(at: webdriver.Chrome) -> None:
    until(at, lambda: len(at.find_elements("css selector", "#slots .load")) == 2)
    first, second = (each.rect["x"] for each in at.find_elements("css selector", "#slots .load"))
    assert first == second


def test_the_plan_is_drawn_and_only_the_right_token_changes_it(at: webdriver.Chrome, handle: ScriptedHandle) -> None:
    at.find_element("id", "tab-plan").click()
    until(at, lambda: "27 lookups/s, 6.7 kept" in text(at, "picture"))
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


def test_the_page_fits_a_phone(at: webdriver.Chrome) -> None:
    with phone(at):
        for tab in ("tab-now", "tab-plan", "tab-why"):
            at.find_element("id", tab).click()
            assert at.execute_script("return document.documentElement.scrollWidth") <= 390, tab
        at.find_element("id", "tab-now").click()
        for table in ("streams", "slots"):
            assert at.execute_script(f"return {table}.scrollWidth <= {table}.clientWidth"), table


def test_the_page_fills_a_wall_also_with_a_notice(browser: webdriver.Chrome, handle: ScriptedHandle) -> None:
    def ends() -> tuple[int, int]:
        """Where the page ends, and where its last line does."""
        query = browser.find_element("css selector", ".text summary").rect
        return browser.execute_script("return document.documentElement.scrollHeight"), query["y"] + query["height"]

    with screen(browser, 1920, 1080), opened(browser, handle) as console:
        until(browser, lambda: ends()[0] == 1080 and ends()[1] > 1040)
        console.close()
        until(browser, lambda: "No answer" in text(browser, "notice"))
        until(browser, lambda: ends()[0] == 1080 and ends()[1] > 1040)


def test_the_plan_is_not_cut_on_a_phone_and_a_touch_enlarges_it(at: webdriver.Chrome) -> None:
    with phone(at):
        at.find_element("id", "tab-plan").click()
        until(at, lambda: "lookups/s" in text(at, "picture"))
        box, drawn = at.find_element("id", "picture"), at.find_element("css selector", "#picture svg")
        assert 300 < drawn.rect["width"] <= box.rect["width"]
        assert at.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", box)
        box.click()
        assert drawn.rect["width"] == pytest.approx(float(drawn.get_attribute("width") or 0), abs=1)
        assert at.execute_script("return document.documentElement.scrollWidth") <= 390


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
