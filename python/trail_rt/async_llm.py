"""Answers as asynchronous streams."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator
from pathlib import Path

from trail_rt._native import EngineError, RequestError, Stream, Waker
from trail_rt.outputs import RequestOutput, request_output
from trail_rt.prompts import Option, Prompt, open_engine, prompt_characters, prompt_tokens
from trail_rt.sampling_params import RequestOutputKind, SamplingParams


LONG_PROMPT = 2048
"""Characters of a prompt from which on its tokens are made on another thread than the loop's."""


class _Wakes:
    """The streams of one event loop that wait for events, and the thread that wakes them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.events: dict[int, asyncio.Event] = {}
        # Not a method: the thread would keep this object, whose end ends the thread.
        wake = functools.partial(_wake, self.events)
        self.waker = Waker(functools.partial(loop.call_soon_threadsafe, wake))


def _wake(events: dict[int, asyncio.Event], numbers: list[int]) -> None:
    for number in numbers:
        event = events.get(number)
        if event is not None:
            event.set()


class AsyncLLM:
    """A model with its engine, for one event loop. The options are those of `LLM`."""

    def __init__(self, model: str | Path | None = None, **options: Option) -> None:
        self.engine = open_engine(model, options)
        self._wakes: _Wakes | None = None
        self._streams: dict[str, Stream] = {}
        self._is_shut_down = False

    def get_default_sampling_params(self) -> SamplingParams:
        """Those of the model's files."""
        return SamplingParams(**self.engine.default_sampling())

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answer as it is generated. One whose task or generator ends early is aborted."""
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        if prompt_characters(prompt) < LONG_PROMPT:
            text, tokens = prompt_tokens(self.engine, prompt)
        else:
            text, tokens = await asyncio.to_thread(prompt_tokens, self.engine, prompt)
        if self._is_shut_down:
            raise EngineError("the AsyncLLM was shut down: make another one")
        if request_id in self._streams:
            raise RequestError(f"request_id '{request_id}' is in use: choose another one")
        wakes = self._wakes_of(asyncio.get_running_loop())
        stream = self.engine.submit(tokens, params, priority, wakes.waker)
        event = wakes.events[stream.number] = asyncio.Event()
        self._streams[request_id] = stream
        is_delta = params.output_kind is RequestOutputKind.DELTA
        is_final = params.output_kind is RequestOutputKind.FINAL_ONLY
        try:
            finished = False
            while not finished:
                event.clear()
                is_new = stream.poll()
                finished = stream.finished
                if finished or (is_new and not is_final):
                    yield request_output(request_id, text, tokens, stream.take(is_delta))
                if not finished:
                    await event.wait()
        finally:
            stream.abort()
            del self._streams[request_id], wakes.events[stream.number]
            self._end_wakes()

    async def abort(self, request_id: str) -> None:
        """Ends an answer: its last output has the finish reason `abort`."""
        with contextlib.suppress(KeyError):
            self._streams[request_id].abort()

    def shutdown(self) -> None:
        """Ends all answers, each with a last output, and then the thread that wakes the loop."""
        self._is_shut_down = True
        for stream in self._streams.values():
            stream.abort()
        self._end_wakes()

    def _end_wakes(self) -> None:
        if self._is_shut_down and not self._streams and self._wakes is not None:
            self._wakes.waker.stop()
            self._wakes = None

    def _wakes_of(self, loop: asyncio.AbstractEventLoop) -> _Wakes:
        if self._wakes is None or self._wakes.loop is not loop:
            if self._streams:
                raise RequestError("an AsyncLLM answers on one event loop: make another one")
            if self._wakes is not None:
                self._wakes.waker.stop()
            self._wakes = _Wakes(loop)
        return self._wakes
