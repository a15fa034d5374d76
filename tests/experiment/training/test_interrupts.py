"""Which signals ask a training to stop, and which are left as they were."""

from __future__ import annotations

import signal

import pytest

from pipemare_exp.experiment.training.interrupts import SIGNALS, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
def test_every_signal_is_a_wish_to_stop_while_entered(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest() as request:
        assert not request.wanted()
        signal.raise_signal(number)
        assert request.wanted() and request.signal == number
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequest():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as request:
            signal.raise_signal(signal.SIGHUP)
            assert not request.wanted()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_else_may_ask_counts_as_ctrl_c() -> None:
    with StopRequest(also=lambda: True) as request:
        assert request.wanted() and request.signal == signal.SIGINT
