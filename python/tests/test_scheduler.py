"""The scheduler step by step."""

from __future__ import annotations

import math

import pytest
from trail_rt import RequestError, Scheduler


def test_the_order_of_calls() -> None:
    scheduler = Scheduler("fcfs", max_running=2, num_blocks=16, max_context=128)
    first = scheduler.submit(20, 3)
    second = scheduler.submit(5, 2, arrival=0.1)
    third = scheduler.submit(5, 2, arrival=0.2)
    plan = scheduler.plan(0.2)
    rows = [(row.request, row.start, row.num_tokens, row.sample) for row in plan.rows]
    assert rows == [(first, 0, 20, True), (second, 0, 5, True)]
    assert (plan.step, plan.num_tokens, len(plan), scheduler.num_waiting) == (0, 25, 2, 1)
    assert len(scheduler.blocks(first)) == 2 and len(scheduler.blocks(second)) == 1
    assert set(scheduler.blocks(first)).isdisjoint(scheduler.blocks(second))
    scheduler.advance()
    assert scheduler.generated(first) == 1
    scheduler.plan(0.3)
    scheduler.advance()
    assert scheduler.finish(second) and not scheduler.finish(second)
    assert [row.request for row in scheduler.plan(0.4).rows] == [first, third]
    scheduler.advance()
    assert scheduler.finish(first) and scheduler.finish(third)
    assert len(scheduler) == 0 and scheduler.blocks_used == 0


def test_the_shortest_expected_goes_first_and_may_preempt() -> None:
    scheduler = Scheduler("trail:0.9", max_running=1, min_run_tokens=0, tail_bound=0.0)
    long = scheduler.submit(8, 400, predicted_length=300.0)
    assert scheduler.plan(0.0).rows[0].request == long
    scheduler.advance()
    scheduler.predict(long, 299.0, quantiles=(200.0, 290.0, 390.0))
    assert scheduler.remaining(long) == 299.0
    short = scheduler.submit(8, 400, arrival=0.01, predicted_length=5.0)
    plan = scheduler.plan(0.01)
    assert [row.request for row in plan.rows] == [short] and plan.preempted == [long]
    scheduler.advance()
    scheduler.set_policy("trail", min_run_tokens=0)
    assert [row.request for row in scheduler.plan(0.02).rows] == [short]
    scheduler.advance()
    # A running request stays; then the first that came goes first.
    scheduler.set_policy("fcfs")
    scheduler.submit(8, 400, arrival=0.03, predicted_length=1.0)
    scheduler.finish(short)
    assert [row.request for row in scheduler.plan(0.03).rows] == [long]


def test_the_first_prediction_may_have_a_share_of_the_rank() -> None:
    for share, first in ((0.0, 0), (0.5, 1)):
        scheduler = Scheduler(
            "trail:1", max_running=1, min_run_tokens=0, tail_bound=0.0, initial_share=share
        )
        # Expected to be short by the probe, and long by the prompt; the other one in between.
        running = scheduler.submit(8, 400, predicted_length=300.0)
        scheduler.plan(0.0)
        scheduler.advance()
        scheduler.predict(running, 20.0)
        waiting = scheduler.submit(8, 400, arrival=0.01, predicted_length=60.0)
        best = scheduler.plan(0.01).rows[0].request
        assert best == (running, waiting)[first]
    with pytest.raises(RequestError, match="initial_share is 2: give a number from 0 to 1"):
        Scheduler("trail", initial_share=2.0)


def test_a_prediction_counts_down() -> None:
    scheduler = Scheduler("trail", max_running=4)
    request = scheduler.submit(8, 100)
    plan = scheduler.plan(0.0)
    scheduler.advance()
    # Of the activation of that step, which did not know its token yet.
    scheduler.predict(request, 10.0, step=plan.step)
    assert scheduler.remaining(request) == 9.0
    scheduler.plan(0.1)
    scheduler.advance()
    assert scheduler.remaining(request) == 8.0


def test_wrong_calls_are_refused() -> None:
    scheduler = Scheduler("fcfs", max_running=2, max_requests=2, num_blocks=16, max_context=128)
    with pytest.raises(RequestError, match="plan first"):
        scheduler.advance()
    request = scheduler.submit(8, 1)
    scheduler.plan(0.0)
    with pytest.raises(RequestError, match="advance first"):
        scheduler.plan(0.0)
    scheduler.advance()
    with pytest.raises(RequestError, match="has its max_tokens"):
        scheduler.plan(0.0)
    scheduler.finish(request)
    again = scheduler.submit(8, 10)
    with pytest.raises(RequestError, match=f"no request {request}"):
        scheduler.blocks(request)
    scheduler.predict(request, 1.0)
    assert scheduler.remaining(again) is None
    with pytest.raises(RequestError, match="context holds 128"):
        scheduler.submit(8, 1000)
    with pytest.raises(RequestError, match="policy 'best'"):
        Scheduler("best")
    with pytest.raises(RequestError, match="max_running is 0"):
        Scheduler(max_running=0)
    with pytest.raises(TypeError, match="'speed'"):
        Scheduler(speed=1)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="tail_bound is -1"):
        Scheduler(tail_bound=-1)
    with pytest.raises(OverflowError):
        scheduler.submit(-1, 10)


def test_numbers_that_are_none_are_refused() -> None:
    scheduler = Scheduler("trail", max_running=2)
    request = scheduler.submit(8, 10)
    for nothing in (math.nan, math.inf):
        with pytest.raises(RequestError, match="arrival is NaN"):
            scheduler.submit(8, 10, arrival=nothing)
        with pytest.raises(RequestError, match="predicted_length is NaN"):
            scheduler.submit(8, 10, predicted_length=nothing)
        with pytest.raises(RequestError, match="remaining is NaN"):
            scheduler.predict(request, nothing)
        with pytest.raises(RequestError, match="now is NaN"):
            scheduler.plan(nothing)
    with pytest.raises(RequestError, match="predicted_length is not above 0"):
        scheduler.submit(8, 10, predicted_length=0.0)
    assert len(scheduler) == 1 and scheduler.remaining(request) is None


def test_options_are_not_swallowed() -> None:
    with pytest.raises(RequestError, match="tail_bound is of policies that rank by length"):
        Scheduler("fcfs", tail_bound=5.0)
    scheduler = Scheduler("trail")
    with pytest.raises(TypeError, match="'max_running'"):
        scheduler.set_policy("fcfs", max_running=7)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="express is of policies"):
        scheduler.set_policy("fcfs", express=0.5)
    scheduler.submit(8, 10)
    with pytest.raises(RequestError, match="true_length"):
        scheduler.set_policy("oracle")
    oracle = Scheduler("oracle")
    with pytest.raises(RequestError, match="true_length"):
        oracle.submit(8, 10)
    oracle.submit(8, 10, true_length=4)
    oracle.set_policy("srpt")
