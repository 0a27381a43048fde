"""Answers, by vLLM's names, with the engine's expectations."""

from __future__ import annotations

from dataclasses import dataclass

from trail_rt._native import Part


@dataclass
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float
    finish_reason: str | None = None
    """`stop`, `length` or `abort`; None while it goes on."""
    stop_reason: int | str | None = None
    """The string or the token of the request that ended it."""
    predicted_length: float | None = None
    """Tokens that were expected at first; None without a probe and a predictor."""
    predicted_remaining: float | None = None
    """Median of the tokens still to come; None once it has ended."""
    remaining_interval: tuple[float, float] | None = None
    """Their interval of 80 %."""

    def finished(self) -> bool:
        """True once it has ended."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The answer to a prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    """Tokens of the prompt whose KV was shared."""
    num_preemptions: int = 0
    eta: float | None = None
    """Seconds until the last token, more than 0; None before the engine has timed a step, and at
    the end."""
    eta_interval: tuple[float, float] | None = None
    """Their interval of 80 %."""


def request_output(
    request_id: str, prompt: str | None, prompt_token_ids: list[int], part: Part
) -> RequestOutput:
    """The output that has `part` of an answer."""
    output = CompletionOutput(
        index=0,
        text=part.text,
        token_ids=part.token_ids,
        cumulative_logprob=part.cumulative_logprob,
        finish_reason=part.finish_reason,
        stop_reason=part.stop_reason,
        predicted_length=part.predicted_length,
        predicted_remaining=part.predicted_remaining,
        remaining_interval=part.remaining_interval,
    )
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=prompt_token_ids,
        outputs=[output],
        finished=part.finish_reason is not None,
        num_cached_tokens=part.num_cached_tokens,
        num_preemptions=part.num_preemptions,
        eta=part.eta,
        eta_interval=part.eta_interval,
    )
