"""The scheduler on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast

import numpy as np
import numpy.typing as npt

from trail_rt import _native
from trail_rt._native import RequestError
from trail_rt.probe import column

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trail_rt._native import SchedulerOptions


class Columns(Protocol):
    """Arrays by name: a dict, or a DataFrame of pandas."""

    def __getitem__(self, name: str, /) -> Any: ...

    def __contains__(self, name: str, /) -> bool: ...


Trace = Columns
"""Columns by name, as a dict of arrays or a DataFrame of pandas: `arrival` (seconds), `prompt` and
`output` (tokens); and optional `predicted` (tokens expected from the prompt; NaN for none),
`priority`, and `remaining` (an array for each request: expected tokens by those generated)."""


class SimulationResult(TypedDict):
    """Outcomes by request, in order of arrival, and totals. Times are seconds."""

    request: npt.NDArray[np.int64]
    arrival: npt.NDArray[np.float64]
    ttft: npt.NDArray[np.float64]
    latency: npt.NDArray[np.float64]
    longest_gap: npt.NDArray[np.float64]
    output: npt.NDArray[np.int64]
    preemptions: npt.NDArray[np.int64]
    evictions: npt.NDArray[np.int64]
    worker: npt.NDArray[np.int64]
    makespan: float
    steps: int
    tokens: int
    tokens_per_s: float
    recomputed_tokens: int
    prediction_mae: float | None
    mean_latency: float
    p99_latency: float
    mean_ttft: float


class Simulator:
    """A simulated machine.

    `model` names it, as `a100-80g:8b`; `options` are those of a `Scheduler`. `max_tokens` is what a
    request asks for, where its output is not longer: every output of a trace is generated whole.
    """

    def __init__(
        self,
        model: str = "a100-80g:8b",
        *,
        workers: int = 1,
        max_gap: float = 0.0,
        max_tokens: int = 1024,
        **options: Unpack[SchedulerOptions],
    ) -> None:
        self._model = model
        self._workers = workers
        self._max_gap = max_gap
        self._max_tokens = max_tokens
        self._options = options

    @staticmethod
    def read_trace(path: str | Path) -> dict[str, npt.NDArray[Any]]:
        """The columns of a file of this project, of Azure, of BurstGPT or of Mooncake."""
        return _native.read_trace(Path(path).read_text(encoding="utf-8"))

    def run(self, trace: Trace, policy: str = "trail", *, refined: str = "none") -> SimulationResult:
        """Runs a trace under a policy, as `fcfs`, `sjf`, `trail:0.8` or `oracle`.

        `refined` says which predictions follow those of `predicted`, where the trace has no
        `remaining`: `none`, `exact`, or `probe`, with errors like those of a trained one.
        """
        result = _native.simulate(
            _columns(trace),
            policy,
            self._model,
            self._max_tokens,
            refined,
            self._workers,
            self._max_gap,
            self._options,
        )
        latency = result["latency"]
        result["mean_latency"] = float(latency.mean())
        result["p99_latency"] = float(np.quantile(latency, 0.99))
        result["mean_ttft"] = float(result["ttft"].mean())
        return cast(SimulationResult, result)

    def lower_bound(self, trace: Trace) -> float:
        """Mean latency below which no policy can come."""
        return _native.lower_bound(
            _columns(trace),
            self._model,
            self._max_tokens,
            self._workers,
            self._max_gap,
            self._options,
        )


def _columns(trace: Trace) -> dict[str, Any]:
    missing = [name for name in ("arrival", "prompt", "output") if name not in trace]
    if missing:
        raise RequestError(f"the trace has no {', '.join(missing)}")

    def of(name: str, dtype: type[Any]) -> npt.NDArray[Any] | None:
        return column(trace[name], dtype) if name in trace else None

    if not len(trace["arrival"]):
        raise RequestError("the trace has no request")
    remaining: Sequence[Any] | None = trace["remaining"] if "remaining" in trace else None
    return {
        "arrival": of("arrival", np.float64),
        "prompt": of("prompt", np.int64),
        "output": of("output", np.int64),
        "predicted": of("predicted", np.float32),
        "priority": of("priority", np.int64),
        "remaining": None if remaining is None else [column(one, np.float32) for one in remaining],
    }
