"""The probe: remaining tokens from activations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trail_rt import _native
from trail_rt._native import RequestError, Tracker


class _Array(Protocol):
    def __array__(self, dtype: Any = None, /) -> np.ndarray[Any, Any]: ...


Array = npt.NDArray[Any] | _Array | Sequence[Any]
"""An array of numpy, a tensor of torch in the memory of the CPU, or a list."""

PromptMean = tuple[Array, int]
"""The mean over the activations of a prompt, and its tokens."""


def rows(activations: Array) -> npt.NDArray[np.float32]:
    """Activations `[rows, width]`, where they are: of another type or order they are refused."""
    try:
        # A list of numbers has no type yet.
        dtype = np.float32 if isinstance(activations, (list, tuple)) else None
        array = np.asarray(activations, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as why:
        raise RequestError(
            f"no array can be made of the activations ({why}): give float32, by "
            ".detach().float().cpu() in torch"
        ) from why
    if array.dtype != np.float32:
        raise RequestError(
            f"the activations are {array.dtype}: give float32, by .float() in torch or "
            ".astype('float32') in numpy"
        )
    if array.ndim != 2:
        raise RequestError(f"the activations have the shape {array.shape}: give [rows, width]")
    return array


def column(values: Array, dtype: type[Any]) -> npt.NDArray[Any]:
    """Values, one for each row, in standard order."""
    array = np.asarray(values)
    if array.dtype.kind == "f" and dtype is np.int64 and not np.array_equal(array, array // 1):
        raise RequestError("tokens are whole numbers: round them first")
    return np.ascontiguousarray(array, dtype=dtype)


class Probe:
    """A small network that reads the activation of a layer and predicts the remaining tokens."""

    def __init__(self, native: _native.Probe) -> None:
        self._native = native

    @staticmethod
    def train(
        activations: Array,
        remaining: Array,
        *,
        answers: Array | None = None,
        layer: int = 0,
        bins: int = 10,
        max_tokens: int | None = None,
        hidden: int = 512,
        epochs: int = 16,
        batch: int = 256,
        rate: float = 1e-3,
        seed: int = 1,
    ) -> Probe:
        """Trains on activations `[rows, width]` and the tokens that remained after each.

        The activations are read where they are, and must not change meanwhile. `answers` numbers
        the answer of each row: one answer in eight is kept for validation. `layer` is that of the
        activations, 0 for the first one: the engine taps it.
        """
        of = None if answers is None else column(answers, np.int64)
        native = _native.Probe.train(
            rows(activations),
            column(remaining, np.int64),
            answers=of,
            layer=layer,
            bins=bins,
            max_tokens=max_tokens,
            hidden=hidden,
            epochs=epochs,
            batch=batch,
            rate=rate,
            seed=seed,
        )
        return Probe(native)

    @staticmethod
    def load(path: str | Path) -> Probe:
        """Reads a file, of `save` or of `trail-rt probe train`."""
        return Probe(_native.Probe.load(path))

    def save(self, path: str | Path) -> None:
        """Writes a file: `LLM(model, probe=path)` and `trail-rt serve --probe` read it."""
        self._native.save(path)

    def predict(
        self,
        activations: Array,
        *,
        generated: Array | None = None,
        prompt: PromptMean | None = None,
    ) -> npt.NDArray[np.float32]:
        """The expected remaining tokens of each row alone.

        `generated` (tokens of the answer so far, by row) and `prompt` are needed by probes that
        read them.
        """
        return self._native.predict(
            rows(activations), generated=_tokens(generated), prompt=_mean(prompt)
        )

    def probabilities(
        self,
        activations: Array,
        *,
        generated: Array | None = None,
        prompt: PromptMean | None = None,
    ) -> npt.NDArray[np.float32]:
        """The probabilities `[rows, bins]` of the bins of remaining tokens."""
        return self._native.probabilities(
            rows(activations), generated=_tokens(generated), prompt=_mean(prompt)
        )

    def tracker(self, max_requests: int = 1) -> Tracker:
        """The filter that joins the probabilities of an answer's tokens to an estimate."""
        return self._native.tracker(max_requests)

    @property
    def mae(self) -> float | None:
        """Mean absolute error on the validation's rows, tokens; None for one from a file."""
        return self._native.mae

    @property
    def width(self) -> int:
        """Width of the activations."""
        return self._native.width

    @property
    def edges(self) -> list[float]:
        """Edges of the bins, tokens."""
        return self._native.edges

    @property
    def layers(self) -> list[int]:
        """The layers whose outputs are read, side by side."""
        return self._native.layers


def _tokens(of: Array | None) -> npt.NDArray[np.int64] | None:
    return None if of is None else column(of, np.int64)


def _mean(prompt: PromptMean | None) -> tuple[npt.NDArray[np.float32], int] | None:
    return None if prompt is None else (column(prompt[0], np.float32), prompt[1])
