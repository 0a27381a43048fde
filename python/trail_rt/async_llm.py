"""Answers as asynchronous streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

from trail_rt._native import RequestError, Stream, Waker
from trail_rt.outputs import RequestOutput, request_output
from trail_rt.prompts import Option, Prompt, open_engine, prompt_tokens
from trail_rt.sampling_params import RequestOutputKind, SamplingParams


class _Wakes:
    """The streams of one event loop that wait for events."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.events: dict[int, asyncio.Event] = {}
        self.waker = Waker(self._from_thread)

    def _from_thread(self, numbers: list[int]) -> None:
        self.loop.call_soon_threadsafe(self._wake, numbers)

    def _wake(self, numbers: list[int]) -> None:
        for number in numbers:
            event = self.events.get(number)
            if event is not None:
                event.set()


class AsyncLLM:
    """A model with its engine, for one event loop. The options are those of `LLM`."""

    def __init__(self, model: str | Path | None = None, **options: Option) -> None:
        self.engine = open_engine(model, options)
        self._wakes: _Wakes | None = None
        self._streams: dict[str, Stream] = {}

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
        if request_id in self._streams:
            raise RequestError(f"request_id '{request_id}' is in use: choose another one")
        params = sampling_params or self.get_default_sampling_params()
        text, tokens = prompt_tokens(self.engine, prompt)
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

    async def abort(self, request_id: str) -> None:
        """Ends an answer: its last output has the finish reason `abort`."""
        with contextlib.suppress(KeyError):
            self._streams[request_id].abort()

    def shutdown(self) -> None:
        """Ends all answers and the thread that wakes the loop."""
        for stream in self._streams.values():
            stream.abort()
        if self._wakes is not None:
            self._wakes.waker.stop()
            self._wakes = None

    def _wakes_of(self, loop: asyncio.AbstractEventLoop) -> _Wakes:
        if self._wakes is None or self._wakes.loop is not loop:
            if self._streams:
                raise RequestError("an AsyncLLM answers on one event loop: make another one")
            self._wakes = _Wakes(loop)
        return self._wakes
