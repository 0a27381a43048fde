"""Answers to lists of prompts."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from trail_rt._native import EngineError, RequestError, Stream
from trail_rt.outputs import RequestOutput, request_output
from trail_rt.prompts import (
    ChatMessage,
    Option,
    Prompt,
    chat_tokens,
    conversations,
    open_engine,
    prompt_list,
    prompt_tokens,
)
from trail_rt.sampling_params import RequestOutputKind, SamplingParams


class LLM:
    """A model with its engine.

    `model` is a path, `hf:OWNER/NAME`, or None for the bundled model. `options` are those of
    `trail-rt serve` on model, predictions, scheduling and device, with `_` for `-`:
    `LLM(path, policy="trail:0.5", kv_blocks=512, threads=4)`.
    """

    def __init__(self, model: str | Path | None = None, **options: Option) -> None:
        self.llm_engine = open_engine(model, options)
        self._numbers = itertools.count()

    def get_default_sampling_params(self) -> SamplingParams:
        """Those of the model's files."""
        return SamplingParams(**self.llm_engine.default_sampling())

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """The answers to all prompts, in their order. The engine answers them together."""
        every = prompt_list(prompts)
        texts = [prompt_tokens(self.llm_engine, prompt) for prompt in every]
        return self._answer(texts, sampling_params, priority)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """The next turns of one conversation or of several, by the model's chat template."""
        every = conversations(messages)
        tokens = [chat_tokens(self.llm_engine, each) for each in every]
        return self._answer([(None, each) for each in tokens], sampling_params, None)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """The answer to one prompt as it is generated. One that is left early is aborted."""
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        text, tokens = prompt_tokens(self.llm_engine, prompt)
        stream = self.llm_engine.submit(tokens, params, 0, None)
        name = str(next(self._numbers))
        is_final = params.output_kind is RequestOutputKind.FINAL_ONLY
        try:
            while not stream.finished:
                stream.wait(is_final)
                part = stream.take(params.output_kind is RequestOutputKind.DELTA)
                yield request_output(name, text, tokens, part)
        finally:
            stream.abort()

    def _answer(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        each = params if isinstance(params, Sequence) else [params] * len(prompts)
        ranks = [0] * len(prompts) if priority is None else priority
        for name, values in (("sampling_params", each), ("priority", ranks)):
            if len(values) != len(prompts):
                raise RequestError(f"{name} has {len(values)} entries for {len(prompts)} prompts")
        outputs: list[RequestOutput] = []
        live: deque[Stream] = deque()

        def finish_oldest() -> None:
            text, tokens = prompts[len(outputs)]
            live[0].wait(True)
            name = str(next(self._numbers))
            outputs.append(request_output(name, text, tokens, live[0].take(False)))
            live.popleft()

        try:
            for (_, tokens), of, rank in zip(prompts, each, ranks):
                while (stream := self._submit_if_room(tokens, of, rank, bool(live))) is None:
                    finish_oldest()
                live.append(stream)
            while live:
                finish_oldest()
            return outputs
        except BaseException:
            # Their exception holds the streams: nothing else would end them.
            for stream in live:
                stream.abort()
            raise

    def _submit_if_room(
        self, tokens: list[int], params: SamplingParams, priority: int, may_wait: bool
    ) -> Stream | None:
        """Submits a request. None if there is no room and the caller may wait for its own ones."""
        try:
            return self.llm_engine.submit(tokens, params, priority, None)
        except EngineError:
            # Of an engine that has stopped, the streams before have the reason.
            if may_wait:
                return None
            raise
