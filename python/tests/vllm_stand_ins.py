"""Small stand-ins of vLLM's scheduler, queue and requests, as vLLM is too large for these tests.

They have the names that `trail_rt.vllm` uses, and do what vLLM 0.32 does, in its order: requests in
the batch first, one token each, whose last gives way if the KV cache is full; then the
queue's, from its head.
"""

from __future__ import annotations

import enum
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any


class RequestStatus(enum.IntEnum):
    WAITING = 1
    WAITING_FOR_GRAMMAR = 2
    RUNNING = 3
    PREEMPTED = 4
    FINISHED_STOPPED = 5
    FINISHED_LENGTH_CAPPED = 6
    FINISHED_ABORTED = 7


class PauseState(enum.IntEnum):
    UNPAUSED = 0
    PAUSED_NEW = 1


@dataclass(eq=False)
class Request:
    request_id: str
    answer_tokens: int
    max_tokens: int = 1000
    priority: int = 0
    prompt_token_ids: list[int] | None = field(default_factory=lambda: [5] * 8)
    sampling_params: Any = None
    # Skipped in the queue, as where its LoRA adapter has no place.
    is_blocked: bool = False
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_output_placeholders: int = 0
    num_in_flight_tokens: int = 0
    num_stale_output_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids or [0])

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self) -> bool:
        return self.status > RequestStatus.PREEMPTED


class FCFSRequestQueue(deque[Request]):
    def add_request(self, request: Request) -> None:
        self.append(request)

    def prepend_request(self, request: Request) -> None:
        self.appendleft(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        removed = set(requests)
        kept = [request for request in self if request not in removed]
        self.clear()
        self.extend(kept)


class Scheduler:
    def __init__(self, vllm_config: Any, kv_tokens: int = 1 << 20) -> None:
        config = vllm_config.scheduler_config
        self.max_num_running_reqs: int = config.max_num_seqs
        self.max_num_active_reqs: int = config.max_num_seqs
        self.num_waiting_for_streaming_input = 0
        self.kv_tokens = kv_tokens
        self.requests: dict[str, Request] = {}
        self.waiting = FCFSRequestQueue()
        self.deferred_waiting: set[Request] = set()
        self.running: list[Request] = []
        self.finished_req_ids: set[str] = set()
        self.prev_step_scheduled_req_ids: set[str] = set()
        self.reset_preempted_req_ids: set[str] = set()
        self.connector: object | None = None
        self.pause_state = PauseState.UNPAUSED

    def add_request(self, request: Request) -> None:
        assert request.request_id not in self.requests
        self.waiting.add_request(request)
        self.requests[request.request_id] = request

    def schedule(self, throttle_prefills: bool = False) -> dict[str, int]:
        """Returns the tokens to compute of each request."""
        scheduled: dict[str, int] = {}
        preempted = False
        at = 0
        while at < len(self.running):
            request = self.running[at]
            new = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
            if self._is_at_its_end(request):
                at += 1
                continue
            assert new > 0
            while not self._fits(new):
                victim = self.running.pop()
                self._preempt_request(victim, 0.0)
                preempted = True
                if victim is request:
                    break
            else:
                self._compute(request, new, scheduled)
                at += 1
        if not preempted and self.pause_state == PauseState.UNPAUSED:
            self._admit(scheduled)
        assert len(self.running) <= self.max_num_running_reqs
        self.prev_step_scheduled_req_ids = set(scheduled)
        self.finished_req_ids = set()
        self.reset_preempted_req_ids = set()
        return scheduled

    def _admit(self, scheduled: dict[str, int]) -> None:
        places: int = getattr(self, "max_num_active_reqs", self.max_num_running_reqs)
        places -= self.num_waiting_for_streaming_input
        for request in list(self.waiting):
            if len(self.running) >= places:
                break
            is_ready = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            if not is_ready or request.is_blocked or request.num_stale_output_tokens:
                self.deferred_waiting.add(request)
                continue
            if not self._fits(request.num_tokens):
                break
            self.waiting.remove(request)
            self.deferred_waiting.discard(request)
            self.running.append(request)
            if request.status == RequestStatus.PREEMPTED:
                # Otherwise the worker takes it for one that is still in its batch.
                assert request.request_id not in self.prev_step_scheduled_req_ids
            request.status = RequestStatus.RUNNING
            self._compute(request, request.num_tokens, scheduled)

    def _is_at_its_end(self, request: Request) -> bool:
        return request.num_output_tokens + request.num_output_placeholders >= request.max_tokens

    def _fits(self, new: int) -> bool:
        return sum(of.num_computed_tokens for of in self.running) + new <= self.kv_tokens

    def _compute(self, request: Request, new: int, scheduled: dict[str, int]) -> None:
        scheduled[request.request_id] = new
        request.num_computed_tokens += new
        request.num_in_flight_tokens += new

    def _preempt_request(self, request: Request, timestamp: float) -> None:
        assert request.status == RequestStatus.RUNNING and request not in self.running
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_output_placeholders = 0
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_preemptions += 1
        self.waiting.prepend_request(request)
        self.reset_preempted_req_ids.add(request.request_id)

    def update_from_output(self, scheduled: dict[str, int]) -> None:
        """A token for each request that was scheduled."""
        for request_id, tokens in scheduled.items():
            request = self.requests.get(request_id)
            if request is None:
                continue
            request.num_in_flight_tokens -= tokens
            is_stale = request.num_stale_output_tokens > 0
            if is_stale:
                request.num_stale_output_tokens -= tokens
            request.num_output_tokens += 1
            if request.num_output_placeholders and not is_stale:
                request.num_output_placeholders -= 1
            if request.num_output_tokens == request.answer_tokens:
                self.finish_requests(request_id, RequestStatus.FINISHED_STOPPED)

    def finish_requests(self, request_id: str, status: RequestStatus) -> None:
        request = self.requests.pop(request_id)
        if request.status == RequestStatus.RUNNING:
            self.running = [of for of in self.running if of is not request]
        else:
            self.waiting.remove_requests([request])
            self.deferred_waiting.discard(request)
        request.status = status
        self.finished_req_ids.add(request_id)


class AsyncScheduler(Scheduler):
    """Schedules a step before the tokens of the last one are known."""

    def _compute(self, request: Request, new: int, scheduled: dict[str, int]) -> None:
        super()._compute(request, new, scheduled)
        request.num_output_placeholders += 1


def config(
    max_num_seqs: int = 1,
    trail: object = None,
    *,
    is_async: bool = False,
    policy: str = "fcfs",
) -> SimpleNamespace:
    """A `VllmConfig`, with `trail` in its additional_config."""
    scheduler = SimpleNamespace(max_num_seqs=max_num_seqs, policy=policy, async_scheduling=is_async)
    additional = {} if trail is None else {"trail": trail}
    return SimpleNamespace(scheduler_config=scheduler, additional_config=additional)


def install() -> None:
    """Puts them where `trail_rt.vllm` imports vLLM's from."""
    for package in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        sys.modules[package] = ModuleType(package)
    for name, stand_in in (("scheduler", Scheduler), ("async_scheduler", AsyncScheduler)):
        module = ModuleType(f"vllm.v1.core.sched.{name}")
        setattr(module, stand_in.__name__, stand_in)
        sys.modules[module.__name__] = module
