"""vLLM's scheduler in the order of this package: shortest expected answer first, under a bound.

    vllm serve MODEL --scheduler-cls trail_rt.vllm.TrailScheduler

vLLM forms the batches, and keeps the KV cache, as before; its queue is put in order before each
step. It has no public interface for that: `Scheduler` below has the names that are used, and
docs/python.md the version that they were tested with. Importing this module imports vLLM.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from trail_rt._native import LengthPredictor, Ranks, RequestError

if TYPE_CHECKING:

    class SamplingParams(Protocol):
        extra_args: dict[str, Any] | None

    class Status(Protocol):
        name: str

    class Request(Protocol):
        request_id: str
        prompt_token_ids: list[int] | None
        sampling_params: SamplingParams | None
        num_prompt_tokens: int
        num_computed_tokens: int
        num_output_tokens: int
        max_tokens: int
        priority: int
        status: Status

        def is_finished(self) -> bool: ...

    class RequestQueue(Protocol):
        def add_request(self, request: Request) -> None: ...
        def remove_requests(self, requests: Iterable[Request]) -> None: ...
        def __iter__(self) -> Iterator[Request]: ...

    class Scheduler:
        """The part of vLLM's class of this name that is used."""

        requests: dict[str, Request]
        waiting: RequestQueue
        running: list[Request]
        finished_req_ids: set[str]
        max_num_running_reqs: int
        prev_step_scheduled_req_ids: set[str]
        connector: object | None
        pause_state: Status

        def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None: ...
        def add_request(self, request: Request) -> None: ...
        def schedule(self, *args: Any, **kwargs: Any) -> Any: ...
        def _preempt_request(self, request: Request, timestamp: float) -> None: ...

    class AsyncScheduler(Scheduler): ...

    Base = Scheduler
else:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    Base = object

# Below vLLM's own logger, whose handler writes it out.
logger = logging.getLogger("vllm.trail_rt")

# Requests that are ranked; those beyond wait behind them.
_MAX_REQUESTS = 1 << 16

# Priorities that are told apart: from its negative to it, lower first, as in vLLM.
_PRIORITIES = 127

# Answers that a learned mean is over, and the fewest that make one.
_MEMORY = 256
_FEWEST = 8


class Lengths:
    """Expected output lengths: the caller's, else a predictor's, else the mean of recent answers to
    requests of about the same `max_tokens`.
    """

    def __init__(self, predictor: str | None = None) -> None:
        self._predictor = None if predictor is None else LengthPredictor.load(predictor)
        # Number of answers and mean length by the bits of max_tokens.
        self._means: dict[int, tuple[int, float]] = {}

    def expect(self, request: Request) -> float | None:
        """The expected tokens of a request's output; None if nothing is known."""
        length = _hint(request)
        if length is None and self._predictor is not None and request.prompt_token_ids:
            length = self._predictor.predict(request.prompt_token_ids)
        if length is None:
            answers, mean = self._means.get(request.max_tokens.bit_length(), (0, 0.0))
            length = mean if answers >= _FEWEST else None
        return None if length is None else min(max(length, 1.0), float(request.max_tokens))

    def learn(self, request: Request) -> None:
        """Takes an answer that is complete into the mean."""
        bits = request.max_tokens.bit_length()
        answers, mean = self._means.get(bits, (0, 0.0))
        answers = min(answers + 1, _MEMORY)
        self._means[bits] = (answers, mean + (request.num_output_tokens - mean) / answers)


def _hint(request: Request) -> float | None:
    """The caller's estimate: `predicted_length` of `extra_args`, in HTTP of `vllm_xargs`."""
    params = request.sampling_params
    hint = None if params is None else (params.extra_args or {}).get("predicted_length")
    if hint is None:
        return None
    try:
        length = float(hint)
    except (TypeError, ValueError):
        length = math.nan
    if length >= 1.0 and math.isfinite(length):
        return length
    logger.warning(
        "predicted_length of request %s is %r and is ignored: give a number of tokens from 1",
        request.request_id,
        hint,
    )
    return None


def _options(config: Any) -> dict[str, Any]:
    """`trail` of `--additional-config`, which may be an object without keys."""
    options: Any = config.get("trail", {}) if hasattr(config, "get") else {}
    if not hasattr(options, "items"):
        raise ValueError(f'"trail" of --additional-config is {options!r}: give an object')
    return dict(options)


class Ranked(Base):
    """A scheduler of vLLM whose requests are ranked before each step."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        if vllm_config.scheduler_config.policy != "fcfs":
            raise ValueError(
                "trail_rt.vllm.TrailScheduler orders the queue itself, by the requests' priorities "
                "too: leave --scheduling-policy at fcfs"
            )
        options = _options(vllm_config.additional_config)
        policy, predictor = options.pop("policy", "sjf"), options.pop("predictor", None)
        self._lengths = Lengths(predictor)
        self._ranks = Ranks(policy, max_requests=_MAX_REQUESTS, **options)
        # By request_id: the number of `_ranks`, and the request.
        self._ranked: dict[str, tuple[int, Request]] = {}
        # Older versions cannot preempt between two steps: the worker and tokens in flight would
        # not be aware of it.
        self._can_preempt = hasattr(self, "reset_preempted_req_ids")
        logger.info(
            "requests are ranked by %s%s; lengths by %s",
            policy,
            "" if self._can_preempt else ", without preemption in this version of vLLM",
            predictor or "the caller and the mean of recent answers",
        )

    def add_request(self, request: Request) -> None:
        # Otherwise it is further input of a streaming session.
        is_new = request.request_id not in self.requests
        super().add_request(request)
        if not is_new:
            return
        # A request of this name may have ended since the last step.
        self._finish(request.request_id)
        try:
            number = self._ranks.submit(
                max(request.num_prompt_tokens, 1),
                max(request.max_tokens, 1),
                arrival=time.monotonic(),
                predicted_length=self._lengths.expect(request),
                priority=min(max(request.priority, -_PRIORITIES), _PRIORITIES),
            )
        except RequestError as why:
            logger.warning("request %s is not ranked: %s", request.request_id, why)
            return
        self._ranked[request.request_id] = (number, request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        for request_id in self.finished_req_ids:
            self._finish(request_id)
        batch = [
            (self._ranked[of.request_id][0], of.num_computed_tokens, of.num_output_tokens)
            for of in self.running
            if of.request_id in self._ranked
        ]
        order = self._ranks.order(time.monotonic(), batch)
        places = {number: place for place, number in enumerate(order)}

        def place(request: Request) -> int:
            number, _ = self._ranked.get(request.request_id, (-1, request))
            return places.get(number, len(order))

        # Where blocks are short, vLLM preempts the last one.
        self.running.sort(key=place)
        waiting = list(self.waiting)
        for request in self._victims(waiting, place):
            self.running.remove(request)
            self.prev_step_scheduled_req_ids.discard(request.request_id)
            self._preempt_request(request, time.monotonic())
            waiting.append(request)
        if waiting and len(self.running) < self._places():
            # By vLLM's interface of a queue, whatever its class.
            self.waiting.remove_requests(list(self.waiting))
            for request in sorted(waiting, key=place):
                self.waiting.add_request(request)
        return super().schedule(*args, **kwargs)

    def _victims(self, waiting: list[Request], place: Any) -> list[Request]:
        """The running requests that give way, worst rank last: to waiting ones that rank before
        them, where all places of the batch are taken. None with a KV connector, which may hold a
        request's blocks, and none in a pause, which admits no other.
        """
        if not self._can_preempt or self.connector or self.pause_state.name != "UNPAUSED":
            return []
        places = self._places()
        # Others wait for a grammar, for KV from elsewhere, or for a place of their LoRA adapter.
        # (Of vLLM 0.32; before it these are in a separate queue.)
        skipped: Collection[Request] = getattr(self, "deferred_waiting", ())
        ready = [
            of
            for of in waiting
            if of.status.name in ("WAITING", "PREEMPTED") and of not in skipped
        ]
        if not ready or len(self.running) < places:
            return []
        first = sorted([*self.running, *ready], key=place)[:places]
        chosen = {of.request_id for of in first}
        return [of for of in self.running if of.request_id not in chosen]

    def _places(self) -> int:
        """Most requests in the batch. A paused streaming session keeps its place."""
        places: int = getattr(self, "max_num_active_reqs", self.max_num_running_reqs)
        sessions: int = getattr(self, "num_waiting_for_streaming_input", 0)
        return places - sessions

    def _finish(self, request_id: str) -> None:
        if request_id not in self._ranked or not self._ranked[request_id][1].is_finished():
            return
        number, request = self._ranked.pop(request_id)
        if request.status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"):
            self._lengths.learn(request)
        self._ranks.finish(number, request.num_output_tokens)


class TrailSyncScheduler(Ranked, Scheduler):
    """`TrailScheduler` for `--no-async-scheduling`, and for vLLM on CPUs."""


class TrailScheduler(Ranked, AsyncScheduler):
    """For `--scheduler-cls`: ranks by `additional_config["trail"]`.

    Its keys: `policy` (`sjf`; `trail`, which preempts, and others: docs/policies.md), `predictor`
    (a file of `trail-rt predictor train` for the same model), and the options of a rank
    (`trail_rt.Ranks`).
    """

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """A `TrailSyncScheduler` where vLLM does not schedule ahead, as vLLM chooses its own."""
        if not vllm_config.scheduler_config.async_scheduling:
            return TrailSyncScheduler(vllm_config, *args, **kwargs)
        return super().__new__(cls)
