"""Parameters of sampling, by vLLM's names."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class RequestOutputKind(enum.Enum):
    """Content of the outputs of a stream."""

    CUMULATIVE = 0
    """The answer so far."""
    DELTA = 1
    """The part that is new since the last output."""
    FINAL_ONLY = 2
    """The whole answer, once it is there."""


@dataclass
class SamplingParams:
    """Parameters of one request."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """None: a random one. Equal seeds give equal answers."""
    max_tokens: int | None = 16
    """None: as many as the context holds."""
    stop: str | Sequence[str] | None = None
    """Strings that end the answer."""
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    length_hint: int | None = None
    """The caller's estimate of the answer's tokens, for `length_predictor="hint"`."""

    def __post_init__(self) -> None:
        if self.stop is None:
            self.stop = []
        elif isinstance(self.stop, str):
            self.stop = [self.stop]
        if self.stop_token_ids is None:
            self.stop_token_ids = []
