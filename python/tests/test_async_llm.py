"""Asynchronous streams."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest
from trail_rt import (
    AsyncLLM,
    EngineError,
    RequestError,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    TokensPrompt,
)


async def last(llm: AsyncLLM, prompt: Any, params: SamplingParams, name: str) -> RequestOutput:
    output = None
    async for output in llm.generate(prompt, params, name):
        pass
    assert output is not None and output.finished
    return output


async def test_a_thousand_streams_have_the_answers_of_each_alone(
    golden: list[dict[str, Any]],
) -> None:
    llm = AsyncLLM(threads=2)
    kinds = list(RequestOutputKind)

    async def answer(number: int) -> bool:
        of = golden[number % len(golden)]
        kind = kinds[number % 3]
        params = SamplingParams(temperature=0, max_tokens=12, output_kind=kind)
        prompt = TokensPrompt(prompt_token_ids=of["prompt_tokens"])
        tokens: list[int] = []
        async for output in llm.generate(prompt, params, str(number)):
            new = output.outputs[0].token_ids
            tokens = tokens + new if kind is RequestOutputKind.DELTA else new
        return bool(tokens == of["tokens"][:12])

    assert all(await asyncio.gather(*(answer(number) for number in range(1000))))
    assert llm.engine.num_unfinished() == 0
    llm.shutdown()


async def test_abort_ends_an_answer() -> None:
    llm = AsyncLLM(threads=1)
    params = SamplingParams(max_tokens=450, ignore_eos=True)
    count = 0
    async for output in llm.generate("Once upon", params, "one"):
        count = len(output.outputs[0].token_ids)
        await llm.abort("one")
        await llm.abort("no such request")
    assert output.outputs[0].finish_reason == "abort" and count < 450
    llm.shutdown()


async def test_a_cancelled_task_aborts_its_request() -> None:
    llm = AsyncLLM(threads=1)
    params = SamplingParams(max_tokens=450, ignore_eos=True)
    task = asyncio.create_task(last(llm, "Once upon", params, "one"))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()
    output = await last(llm, "Once upon", SamplingParams(max_tokens=2), "one")
    assert len(output.outputs[0].token_ids) <= 2
    assert llm.engine.num_unfinished() == 0
    llm.shutdown()


async def test_an_id_in_use_is_refused() -> None:
    llm = AsyncLLM(threads=1)
    params = SamplingParams(max_tokens=450, ignore_eos=True)
    async for _ in llm.generate("Once upon", params, "one"):
        with pytest.raises(RequestError, match="'one' is in use"):
            await last(llm, "x", params, "one")
        await llm.abort("one")
    llm.shutdown()


async def test_a_shutdown_ends_the_answers_and_their_readers() -> None:
    llm = AsyncLLM(threads=1)
    params = SamplingParams(max_tokens=450, ignore_eos=True)
    tasks = [asyncio.create_task(last(llm, "Once upon", params, str(of))) for of in range(4)]
    await asyncio.sleep(0.02)
    llm.shutdown()
    outputs = await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert [of.outputs[0].finish_reason for of in outputs] == ["abort"] * 4
    with pytest.raises(EngineError, match="was shut down"):
        await last(llm, "Once upon", params, "later")
    await threads_end()
    llm.shutdown()


def wakers() -> int:
    """Threads that wake an event loop."""
    names = Path("/proc/self/task").glob("*/comm")
    return sum(of.read_text(encoding="ascii").startswith("trail-waker") for of in names)


async def threads_end() -> None:
    for _ in range(200):
        if wakers() == 0:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{wakers()} threads are left")


def test_threads_end_with_their_loop_and_their_engine() -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    asyncio.run(threads_end())
    llm = AsyncLLM(threads=1)
    for _ in range(10):
        asyncio.run(last(llm, "Once upon", params, "1"))
    assert wakers() <= 2
    # Without a shutdown.
    del llm
    gc.collect()
    asyncio.run(threads_end())


async def test_a_long_prompt_does_not_hold_the_loop() -> None:
    llm = AsyncLLM(threads=1)
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            begin = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - begin)

    ticks = asyncio.create_task(tick())
    await asyncio.sleep(0.05)
    with pytest.raises(RequestError, match="at least: shorten it"):
        await last(llm, "one two " * 500_000, SamplingParams(), "1")
    ticks.cancel()
    assert longest < 0.5
    llm.shutdown()


def test_each_event_loop_in_turn() -> None:
    llm = AsyncLLM(threads=1)
    params = SamplingParams(temperature=0, max_tokens=4)
    texts = {asyncio.run(last(llm, "Once upon", params, "1")).outputs[0].text for _ in range(2)}
    assert len(texts) == 1
