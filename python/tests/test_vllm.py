"""Requests of vLLM in the order of the ranks: on stand-ins of vLLM's classes."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vllm_stand_ins as vllm
from trail_rt import LengthPredictor, ModelError, Ranks, RequestError
from trail_rt.prompts import BUNDLED_MODEL
from vllm_stand_ins import PauseState, Request, RequestStatus

vllm.install()

from trail_rt.vllm import TrailScheduler, TrailSyncScheduler  # noqa: E402

TRAIL = {"policy": "trail:0.9", "min_run_tokens": 0, "tail_bound": 0.0}
PREDICTOR = str(Path(BUNDLED_MODEL, "predictor.safetensors"))


def scheduler(max_num_seqs: int = 1, trail: object = None, **options: Any) -> Any:
    kv_tokens = options.pop("kv_tokens", 1 << 20)
    return TrailScheduler(vllm.config(max_num_seqs, trail, **options), kv_tokens)


def request(name: str, answer_tokens: int, hint: object = None, **fields: Any) -> Any:
    """A request whose answer has so many tokens, and the estimate `hint`."""
    extra = None if hint is None else {"predicted_length": hint}
    return Request(name, answer_tokens, sampling_params=SimpleNamespace(extra_args=extra), **fields)


def step(engine: Any) -> list[str]:
    """One step; returns the requests in it."""
    scheduled = engine.schedule()
    engine.update_from_output(scheduled)
    return sorted(scheduled)


def run(engine: Any, ahead: int = 0) -> list[str]:
    """Runs until no request is left, `ahead` steps ahead of the tokens; returns them by their ends.

    Each has the tokens that its answer has.
    """
    requests = dict(engine.requests)
    in_flight: deque[dict[str, int]] = deque()
    ended: list[str] = []
    for _ in range(10_000):
        if not engine.requests:
            break
        in_flight.append(engine.schedule())
        if len(in_flight) > ahead:
            engine.update_from_output(in_flight.popleft())
        ended += sorted(engine.finished_req_ids)
    assert not engine.requests
    engine.schedule()
    for of in requests.values():
        assert of.num_output_tokens == of.answer_tokens
    return ended


def test_the_shortest_by_its_hint_goes_first() -> None:
    lengths = {"a": 60, "b": 20, "c": 5, "d": 40}
    ranked, arrived = scheduler(), vllm.Scheduler(vllm.config())
    for name, tokens in lengths.items():
        ranked.add_request(request(name, tokens, hint=tokens))
        arrived.add_request(request(name, tokens, hint=tokens))
    assert run(ranked) == ["c", "b", "d", "a"]
    assert run(arrived) == ["a", "b", "c", "d"]


def test_a_hint_is_as_http_has_it_and_no_number_is_ignored(caplog: Any) -> None:
    engine = scheduler()
    for name, hint in (("a", "nan"), ("b", [3]), ("c", 0), ("d", "12")):
        engine.add_request(request(name, 9, hint))
    engine.add_request(request("e", 9))
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 3 and "of request a is 'nan' and is ignored" in warned[0]
    # By arrival where nothing is known: 256 tokens are assumed.
    assert run(engine) == ["d", "a", "b", "c", "e"]


def test_means_are_learned_by_max_tokens_from_answers_that_ended() -> None:
    def probe() -> list[str]:
        engine.add_request(request("long", 60, max_tokens=100))
        engine.add_request(request("short", 4, max_tokens=1000))
        return run(engine)

    engine = scheduler()
    assert probe() == ["long", "short"]
    for number in range(6):
        engine.add_request(request(f"long {number}", 60, max_tokens=100))
        engine.add_request(request(f"short {number}", 4, max_tokens=1000))
    run(engine)
    # Answers of one token, which were aborted.
    for number in range(200):
        engine.add_request(request(f"aborted {number}", 60, max_tokens=100))
        step(engine)
        engine.finish_requests(f"aborted {number}", RequestStatus.FINISHED_ABORTED)
    assert probe() == ["long", "short"], "seven answers each are too few"
    assert probe() == ["short", "long"]


def test_a_predictor_reads_the_prompt_and_a_hint_precedes_it() -> None:
    predictor = LengthPredictor.load(PREDICTOR)
    short, long = sorted(([301] * 4, [40, 7] * 30), key=lambda ids: predictor.predict(ids) or 0)
    assert predictor.predict(short) != predictor.predict(long)
    engine = scheduler(trail={"predictor": PREDICTOR})
    engine.add_request(request("long", 9, prompt_token_ids=long))
    engine.add_request(request("short", 9, prompt_token_ids=short))
    engine.add_request(request("of embeddings", 9, prompt_token_ids=None, hint=1))
    assert run(engine) == ["of embeddings", "short", "long"]
    with pytest.raises(ModelError, match="none.safetensors"):
        scheduler(trail={"predictor": "none.safetensors"})


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_long_answer_gives_way_under_trail_alone(ahead: int) -> None:
    for trail, ended in (({"policy": "sjf"}, ["long", "short"]), (TRAIL, ["short", "long"])):
        engine = scheduler(trail=trail, is_async=ahead == 1)
        assert isinstance(engine, vllm.AsyncScheduler) == (ahead == 1)
        long = request("long", 100, hint=100)
        engine.add_request(long)
        in_flight = [engine.schedule() for _ in range(1 + ahead)]
        engine.add_request(request("short", 5, hint=5))
        if ahead == 0:
            engine.update_from_output(in_flight.pop())
        # A token of the long one may come when it has given way.
        scheduled = engine.schedule()
        assert (scheduled == {"short": 8}) == (trail is TRAIL)
        for of in [*in_flight, scheduled]:
            engine.update_from_output(of)
        assert run(engine, ahead) == ended
        assert long.num_output_tokens == 100
        assert long.num_preemptions == (trail is TRAIL)


def test_many_requests_run_ahead_with_preemptions_and_little_memory() -> None:
    engine = scheduler(4, TRAIL, is_async=True, kv_tokens=400)
    requests = [request(str(at), 1 + at * 37 % 90, 1 + at * 37 % 90) for at in range(60)]
    for of in requests:
        engine.add_request(of)
        step(engine)
    run(engine, ahead=1)
    assert all(of.num_output_tokens == of.answer_tokens for of in requests)
    assert sum(of.num_preemptions for of in requests) > 5
    assert not engine._ranked and len(engine._ranks) == 0


@pytest.mark.parametrize("why", ["a connector", "a pause", "an older vLLM", "a free place", "no grammar"])
def test_no_request_gives_way(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init = vllm.Scheduler.__init__

    def older(self: vllm.Scheduler, *args: Any) -> None:
        init(self, *args)
        del self.reset_preempted_req_ids, self.max_num_active_reqs

    if why == "an older vLLM":
        monkeypatch.setattr(vllm.Scheduler, "__init__", older)
    engine = scheduler(2 if why == "a free place" else 1, TRAIL)
    engine.add_request(request("long", 100, hint=100))
    step(engine)
    short = request("short", 5, hint=5)
    engine.connector = object() if why == "a connector" else None
    engine.pause_state = PauseState.PAUSED_NEW if why == "a pause" else PauseState.UNPAUSED
    if why == "no grammar":
        short.status = RequestStatus.WAITING_FOR_GRAMMAR
    engine.add_request(short)
    engine.add_request(request("shorter", 4, hint=4))
    engine.requests["shorter"].status = short.status
    assert "long" in step(engine)
    assert engine.requests["long"].num_preemptions == 0


def test_a_request_that_is_skipped_in_the_queue_preempts_once() -> None:
    engine = scheduler(trail=TRAIL)
    engine.add_request(request("long", 100, hint=100))
    step(engine)
    engine.add_request(request("short", 5, hint=5, is_blocked=True))
    for _ in range(9):
        assert step(engine) == ["long"]
    assert engine.requests["long"].num_preemptions == 1
    engine.requests["short"].is_blocked = False
    assert run(engine) == ["long", "short"]


def test_where_memory_is_short_the_worst_rank_gives_way() -> None:
    # Both fit until the 13th token of each; the long one came first.
    engine = scheduler(2, TRAIL, kv_tokens=40)
    long, short = request("long", 25, hint=200), request("short", 24, hint=24)
    engine.add_request(long)
    step(engine)
    engine.add_request(short)
    assert run(engine) == ["short", "long"]
    assert (long.num_preemptions, short.num_preemptions) == (1, 0)


def test_priorities_go_first_lower_before_higher() -> None:
    engine = scheduler()
    engine.add_request(request("late", 5, hint=5, priority=10**12))
    engine.add_request(request("middle", 9, hint=9))
    engine.add_request(request("first", 80, hint=80, priority=-(10**12)))
    assert run(engine) == ["first", "middle", "late"]


def test_requests_that_ended_are_forgotten() -> None:
    engine = scheduler(2, {"policy": "trail"})
    references = []
    for at in range(20):
        of = request(str(at), 3, hint=3)
        references.append(weakref.ref(of))
        engine.add_request(of)
    del of
    step(engine)
    for name in ("0", "19"):  # in the batch, and in the queue
        engine.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    # Its name is used again, before the next step.
    engine.add_request(request("0", 3, hint=1))
    assert "0" in step(engine) and len(engine._ranks) == len(engine.requests) == 19
    run(engine)
    assert not engine._ranked and len(engine._ranks) == 0
    gc.collect()
    assert not any(reference() for reference in references)


@pytest.mark.parametrize(
    ("trail", "why"),
    [
        ({"policy": "shortest"}, "policy 'shortest'"),
        ({"policy": "oracle"}, "'oracle' ranks by true lengths, which no request has here"),
        ({"policy": "fcfs", "express": 0.5}, "express is of policies that rank by length"),
        ({"express": -1.0}, "express is -1: give a number from 0"),
        ({"max_running": 4}, "'max_running' is an unexpected keyword: no option of a policy"),
        (["sjf"], '"trail" of --additional-config is .*: give an object'),
    ],
)
def test_wrong_options_are_refused_at_the_start(trail: object, why: str) -> None:
    with pytest.raises((RequestError, TypeError, ValueError), match=why):
        scheduler(trail=trail)


def test_the_queue_of_priorities_of_vllm_is_refused() -> None:
    with pytest.raises(ValueError, match="leave --scheduling-policy at fcfs"):
        scheduler(policy="priority")


def test_without_async_scheduling_it_is_the_other_class() -> None:
    assert type(scheduler()) is TrailSyncScheduler
    assert type(scheduler(is_async=True)) is TrailScheduler


def test_ranks_of_another_engine() -> None:
    ranks = Ranks("trail", max_requests=2, min_run_tokens=0)
    long = ranks.submit(8, 400, predicted_length=300.0)
    assert ranks.order(0.0, []) == [long]
    short = ranks.submit(8, 400, predicted_length=5.0, arrival=0.5)
    assert ranks.order(1.0, [(long, 8, 1)]) == [short, long]
    with pytest.raises(RequestError, match="2 requests"):
        ranks.submit(8, 400)
    assert ranks.finish(short, 5) and not ranks.finish(short, 5) and len(ranks) == 1
    with pytest.raises(RequestError, match="there is no request"):
        ranks.order(2.0, [(short, 8, 1)])
    with pytest.raises(RequestError, match="now is NaN"):
        ranks.order(float("nan"), [])
    with pytest.raises(RequestError, match="predicted_length is NaN"):
        ranks.submit(8, 400, predicted_length=float("nan"))
    with pytest.raises(RequestError, match="max_requests is 0"):
        Ranks(max_requests=0)
