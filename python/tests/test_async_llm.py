"""Asynchronous streams."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from trail_rt import (
    AsyncLLM,
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


def test_each_event_loop_in_turn() -> None:
    llm = AsyncLLM(threads=1)
    params = SamplingParams(temperature=0, max_tokens=4)
    texts = {asyncio.run(last(llm, "Once upon", params, "1")).outputs[0].text for _ in range(2)}
    assert len(texts) == 1
