from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack

class TrailError(Exception):
    """The base of all exceptions of trail_rt."""

class ModelError(TrailError):
    """A model, a probe, a trace or an option cannot be used."""

class RequestError(TrailError):
    """A request or an argument is invalid."""

class EngineError(TrailError):
    """The engine is full, has stopped, or broke down: the request may be tried again."""

class _Params(Protocol):
    temperature: float
    top_p: float
    max_tokens: int | None

class RankingOptions(TypedDict, total=False):
    """Options of a rank by length, as those of `trail-rt serve`."""

    min_run_tokens: int
    tail_bound: float
    express: float
    prefill_weight: float
    initial_share: float

class SchedulerOptions(RankingOptions, total=False):
    """Options of a scheduler: `SchedulerConfig` of the crate trail-scheduler has their meaning."""

    max_running: int
    max_requests: int
    token_budget: int
    num_blocks: int
    max_context: int
    watermark: float
    max_skipped_steps: int
    max_barrier_steps: int
    max_lookahead: int
    max_recompute: float
    refresh_tokens: int
    reserve: Literal["present", "mean", "p90"]

def check_option(name: str) -> None: ...

class Engine:
    def __init__(self, options: list[str]) -> None: ...
    def submit(
        self, prompt: Sequence[int], params: _Params, priority: int, waker: Waker | None
    ) -> Stream: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_chat(self, messages: list[tuple[str, str]]) -> list[int]: ...
    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str: ...
    def default_sampling(self) -> dict[str, Any]: ...
    def num_unfinished(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def policy(self) -> str: ...

class Waker:
    def __init__(self, callback: Callable[[list[int]], object]) -> None: ...
    def stop(self) -> None: ...

class Stream:
    @property
    def number(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def poll(self) -> bool: ...
    def wait(self, all: bool) -> None: ...
    def take(self, delta: bool) -> Part: ...
    def abort(self) -> None: ...

class Part:
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def cumulative_logprob(self) -> float: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def stop_reason(self) -> int | str | None: ...
    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def predicted_length(self) -> float | None: ...
    @property
    def predicted_remaining(self) -> float | None: ...
    @property
    def remaining_interval(self) -> tuple[float, float] | None: ...
    @property
    def eta(self) -> float | None: ...
    @property
    def eta_interval(self) -> tuple[float, float] | None: ...

class Row:
    """The tokens of one request to compute in a step."""

    @property
    def request(self) -> int:
        """The request's number."""
    @property
    def start(self) -> int:
        """Position of the first token, from 0."""
    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
    @property
    def sample(self) -> bool:
        """True if the next token is sampled after the last one."""

class Plan:
    """The plan of a step."""

    @property
    def step(self) -> int:
        """Number of the step."""
    @property
    def rows(self) -> list[Row]:
        """The rows, best rank first."""
    @property
    def preempted(self) -> list[int]:
        """Requests that were in the last plan and are not in this one."""
    @property
    def evicted(self) -> list[int]:
        """Requests that lost their KV blocks: their next row begins at 0."""
    @property
    def recomputed_tokens(self) -> int:
        """Tokens that are computed again, after an eviction."""
    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
    def __len__(self) -> int: ...

class Scheduler:
    """Ranks requests by what they have left, and plans the steps of an engine.

    The order of calls: `submit` what arrived, `plan` a step, compute its rows into the blocks that
    `blocks` names, `advance`, `predict` what was read, `finish` what ended.
    """

    BLOCK_TOKENS: ClassVar[int]
    """Tokens of a KV block."""

    def __init__(self, policy: str = "trail", **options: Unpack[SchedulerOptions]) -> None: ...
    def submit(
        self,
        prompt_tokens: int,
        max_tokens: int,
        *,
        arrival: float = 0.0,
        predicted_length: float | None = None,
        true_length: int | None = None,
        priority: int = 0,
        generated: int = 0,
    ) -> int:
        """Takes a request into the queue; returns its number, which no other one has."""
    def predict(
        self,
        request: int,
        remaining: float,
        *,
        quantiles: tuple[float, float, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Records how many output tokens a request is expected to need from now on.

        With `step` from the beginning of that step. `quantiles` are those of 10, 50 and 90 %. One
        for a request that has finished has no effect.
        """
    def plan(self, now: float) -> Plan:
        """Plans the next step, at `now` seconds."""
    def advance(self) -> None:
        """Records that the plan's rows were computed, and a token sampled where they say so."""
    def accept(self, request: int, tokens: int) -> None:
        """Records tokens that the last step sampled beyond one: draft tokens that were right."""
    def finish(self, request: int) -> bool:
        """Removes a request, completed or not. False if it has finished before."""
    def blocks(self, request: int) -> list[int]:
        """The KV blocks of a request, in the order of its tokens."""
    def generated(self, request: int) -> int:
        """Output tokens of a request so far."""
    def remaining(self, request: int) -> float | None:
        """Output tokens that a request is expected to need; None without a prediction."""
    def set_policy(self, policy: str, **options: Unpack[RankingOptions]) -> None:
        """Ranks by another policy from the next plan on."""
    @property
    def num_running(self) -> int:
        """Requests in the last plan that are not finished."""
    @property
    def num_waiting(self) -> int:
        """Requests without KV."""
    @property
    def num_paused(self) -> int:
        """Preempted requests that hold their KV."""
    @property
    def blocks_used(self) -> int:
        """KV blocks that requests hold."""
    def __len__(self) -> int: ...

class Ranks:
    """Ranks the requests of an engine with its own batches and memory.

    `submit` what arrived, ask for the `order` at each step, and fill the batch from its head: a
    request in the batch that ranks behind it may give way. `finish` what ended.
    """

    def __init__(
        self,
        policy: str = "trail",
        *,
        max_requests: int = 4096,
        **options: Unpack[RankingOptions],
    ) -> None: ...
    def submit(
        self,
        prompt_tokens: int,
        max_tokens: int,
        *,
        arrival: float = 0.0,
        predicted_length: float | None = None,
        priority: int = 0,
    ) -> int:
        """Takes a request into the order; returns its number, which no other one has."""
    def order(self, now: float, batch: Sequence[tuple[int, int, int]]) -> list[int]:
        """Begins a step at `now` seconds: the numbers of all requests, best rank first.

        `batch` has of each request in the engine's its number, the tokens whose KV is computed, and
        the output tokens so far. Requests that were in it and are not have lost their KV.
        """
    def finish(self, request: int, generated: int) -> bool:
        """Removes a request that ended with so many output tokens. False if it ended before."""
    def __len__(self) -> int: ...

class LengthPredictor:
    """A head of `trail-rt predictor train`: output lengths from a prompt's tokens."""

    @staticmethod
    def load(path: str | PathLike[str]) -> LengthPredictor:
        """Reads a file of `trail-rt predictor train`, for the model's own tokens."""
    def predict(self, token_ids: Sequence[int]) -> float | None:
        """The output tokens that are expected of the answer to a prompt."""

class Estimate:
    """What is expected of an answer, tokens."""

    @property
    def remaining(self) -> float: ...
    @property
    def p10(self) -> float: ...
    @property
    def p50(self) -> float: ...
    @property
    def p90(self) -> float: ...

class Tracker:
    """The filter of a probe's predictions, for some answers at once."""

    def observe(
        self, place: int, generated: int, probabilities: npt.NDArray[np.float32]
    ) -> Estimate:
        """Takes in the probabilities after `generated` tokens of the answer at `place`."""
    def forget(self, place: int) -> None:
        """Makes a place free for another answer."""

class Probe:
    @staticmethod
    def train(
        activations: npt.NDArray[np.float32],
        remaining: npt.NDArray[np.int64],
        *,
        answers: npt.NDArray[np.int64] | None = None,
        layer: int = 0,
        bins: int = 10,
        max_tokens: int | None = None,
        hidden: int = 512,
        epochs: int = 16,
        batch: int = 256,
        rate: float = 1e-3,
        seed: int = 1,
    ) -> Probe: ...
    @staticmethod
    def load(path: str | PathLike[str]) -> Probe: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def probabilities(
        self,
        activations: npt.NDArray[np.float32],
        *,
        generated: npt.NDArray[np.int64] | None = None,
        prompt: tuple[npt.NDArray[np.float32], int] | None = None,
    ) -> npt.NDArray[np.float32]: ...
    def predict(
        self,
        activations: npt.NDArray[np.float32],
        *,
        generated: npt.NDArray[np.int64] | None = None,
        prompt: tuple[npt.NDArray[np.float32], int] | None = None,
    ) -> npt.NDArray[np.float32]: ...
    def tracker(self, max_requests: int = 1) -> Tracker: ...
    @property
    def mae(self) -> float | None: ...
    @property
    def width(self) -> int: ...
    @property
    def edges(self) -> list[float]: ...
    @property
    def layers(self) -> list[int]: ...

def simulate(
    columns: dict[str, Any],
    policy: str,
    model: str,
    max_tokens: int,
    refined: str,
    workers: int,
    max_gap: float,
    options: SchedulerOptions | None = None,
) -> dict[str, Any]: ...
def lower_bound(
    columns: dict[str, Any],
    model: str,
    max_tokens: int,
    workers: int,
    max_gap: float,
    options: SchedulerOptions | None = None,
) -> float: ...
def read_trace(text: str) -> dict[str, npt.NDArray[Any]]: ...
