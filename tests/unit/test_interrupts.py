"""Signals that ask a run to end: the first is noted, the second has its own effect."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from anabranch.run.interrupts import noted_signals, takes_interrupts


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Leaves the handlers of the test run as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_noted_and_raises_nothing() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    told: list[str] = []
    with noted_signals(signal.SIGINT, signal.SIGTERM, then=lambda: told.append("once")) as noted:
        assert not noted.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert (noted.is_set(), told) == (True, ["once"])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_ends_the_process_if_requested() -> None:
    with noted_signals(signal.SIGINT, signal.SIGTERM, default=True) as noted:
        signal.raise_signal(signal.SIGINT)
        assert noted.is_set()
        assert {signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} == {signal.SIG_DFL}


def test_outside_the_main_thread_nothing_changes() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with noted_signals(signal.SIGTERM) as noted:
            found.append((signal.getsignal(signal.SIGTERM), noted.is_set()))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(before, False)]


def test_a_handler_of_the_program_is_not_ours_to_replace() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert takes_interrupts()
    signal.signal(signal.SIGINT, lambda *_: None)
    assert not takes_interrupts()
