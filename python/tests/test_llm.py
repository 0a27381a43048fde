"""Answers to lists of prompts, and the errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trail_rt
from trail_rt import LLM, ChatMessage, RequestOutputKind, SamplingParams, TokensPrompt


def test_answers_are_those_of_the_engine(llm: LLM, golden: list[dict[str, Any]]) -> None:
    prompts = [TokensPrompt(prompt_token_ids=of["prompt_tokens"]) for of in golden]
    params = [SamplingParams(temperature=0, max_tokens=len(of["tokens"])) for of in golden]
    outputs = llm.generate(prompts, params)
    assert [output.outputs[0].token_ids for output in outputs] == [of["tokens"] for of in golden]
    assert [output.prompt_token_ids for output in outputs] == [of["prompt_tokens"] for of in golden]
    for output, of in zip(outputs, golden):
        assert output.finished and output.outputs[0].finish_reason in ("stop", "length")
        # The text without the token that ends it.
        text = llm.llm_engine.decode(of["tokens"], True)
        assert text.strip() == output.outputs[0].text.strip()
        predicted = output.outputs[0].predicted_length
        assert predicted is not None and 1 <= predicted <= len(of["tokens"])


def test_chat_uses_the_template(llm: LLM, golden: list[dict[str, Any]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    messages = [[ChatMessage(role="user", content=of["prompt"])] for of in golden]
    outputs = llm.chat(messages, params)
    assert [output.prompt_token_ids for output in outputs] == [of["prompt_tokens"] for of in golden]
    one = llm.chat(messages[0], params)
    assert one[0].outputs[0].token_ids == golden[0]["tokens"][:8]


def test_a_seed_repeats_an_answer_and_stops_end_it(llm: LLM) -> None:
    params = SamplingParams(seed=5, max_tokens=40, ignore_eos=True)
    first, again = (llm.generate("Once upon", params)[0].outputs[0] for _ in range(2))
    assert first == again and len(first.token_ids) == 40 and first.finish_reason == "length"
    stop = first.text.split()[2]
    cut = SamplingParams(seed=5, max_tokens=40, ignore_eos=True, stop=stop)
    output = llm.generate("Once upon", cut)[0].outputs[0]
    assert output.text == first.text[: first.text.index(stop)]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    token = first.token_ids[10]
    by_token = SamplingParams(seed=5, max_tokens=40, ignore_eos=True, stop_token_ids=[token])
    output = llm.generate("Once upon", by_token)[0].outputs[0]
    assert (output.finish_reason, output.stop_reason) == ("stop", token)
    assert output.token_ids == first.token_ids[: first.token_ids.index(token) + 1]


def test_a_stream_has_predictions_and_an_end(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=400, ignore_eos=True)
    outputs = list(llm.stream("Once upon", params))
    assert outputs[-1].finished and not outputs[0].finished
    assert outputs[-1].outputs[0].text.startswith(outputs[0].outputs[0].text)
    live = [output.outputs[0] for output in outputs[:-1]]
    for output in live:
        assert output.predicted_remaining is not None and output.remaining_interval is not None
        low, high = output.remaining_interval
        assert 1 <= low <= output.predicted_remaining <= high
    params.output_kind = RequestOutputKind.DELTA
    parts = list(llm.stream("Once upon", params))
    assert "".join(part.outputs[0].text for part in parts) == outputs[-1].outputs[0].text
    assert sum(len(part.outputs[0].token_ids) for part in parts) == 400


def test_an_eta_counts_down_to_the_end() -> None:
    llm = LLM(threads=1, max_running=1)
    params = SamplingParams(seed=1, max_tokens=450, ignore_eos=True)
    etas = []
    for _ in range(20):
        etas = [output.eta for output in llm.stream("Once upon", params)]
        if any(eta is not None for eta in etas):
            break
    known = [eta for eta in etas if eta is not None]
    # Not 0 while tokens are left.
    assert known and all(0 < eta < 60 for eta in known)
    assert etas[-1] is None
    # Once steps are timed, from the first output on.
    etas = [output.eta for output in llm.stream("Once upon", params)]
    assert etas.pop() is None and all(eta is not None and 0 < eta < 60 for eta in etas)


def test_a_stream_left_early_is_aborted(llm: LLM) -> None:
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    for output in llm.stream("Once upon", params):
        assert not output.finished
        break
    assert llm.generate("x", SamplingParams(max_tokens=1))[0].finished
    assert llm.llm_engine.num_unfinished() == 0


WRONG_PROMPTS: list[tuple[Any, str]] = [
    ([], "no prompt"),
    (None, "a prompt is None"),
    ([[99999]], "not in the vocabulary"),
    ([-1], "token -1 is not in the vocabulary"),
    ([2**40], "is not in the vocabulary"),
    ([1.5], "a prompt is 1.5"),
    ({"text": "Once"}, "the keys ['text']"),
    ({"prompt": 7}, "the prompt is 7"),
    ("one two " * 100_000, "at least: shorten it"),
]

WRONG_PARAMS: list[tuple[str, Any]] = [
    ("temperature", "hot"),
    ("top_k", -2),
    ("max_tokens", -1),
    ("seed", 2**64),
    ("stop_token_ids", [-1]),
    ("stop", 7),
    ("ignore_eos", "no"),
]


def changed(name: str, value: object) -> SamplingParams:
    """Parameters with a field that was changed after they were made."""
    params = SamplingParams(max_tokens=2)
    setattr(params, name, value)
    return params


def test_each_form_of_a_prompt(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    plain = llm.generate("prompt_token_ids", params)[0]
    ids = plain.prompt_token_ids
    array = np.array(ids)
    forms: list[Any] = [
        ["prompt_token_ids"],
        {"prompt": "prompt_token_ids"},
        [{"prompt": "prompt_token_ids"}],
        ids,
        tuple(ids),
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": array}],
        array,
        [array],
    ]
    for form in forms:
        (output,) = llm.generate(form, params)
        assert output.outputs == plain.outputs, form
        assert output.prompt_token_ids == ids and type(output.prompt_token_ids[0]) is int
    for seed in (2**64 - 1, -1):
        assert llm.generate("x", SamplingParams(seed=seed, max_tokens=2))[0].finished
    assert llm.generate("Once upon", changed("stop", "x"))[0].finished


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda _: LLM("/no/such/folder"), trail_rt.ModelError, "/no/such/folder"),
        (lambda _: LLM(no_such_option=1), trail_rt.ModelError, "--no-such-option"),
        (lambda _: LLM(kv_blocks="many"), trail_rt.ModelError, "--kv-blocks"),
        (lambda _: LLM(kv_blocks=-1), trail_rt.ModelError, "'-1' for '--kv-blocks"),
        (lambda _: LLM(kv_block=64), trail_rt.ModelError, "'--kv-blocks'"),
        (lambda _: LLM(no_such_option=False), trail_rt.ModelError, "--no-such-option"),
        (lambda _: LLM(no_such_option=None), trail_rt.ModelError, "--no-such-option"),
        *(
            (lambda llm, wrong=wrong: llm.generate(wrong), trail_rt.RequestError, says)
            for wrong, says in WRONG_PROMPTS
        ),
        *(
            (
                lambda llm, name=name, wrong=wrong: llm.generate("x", changed(name, wrong)),
                trail_rt.RequestError,
                f"{name} is {wrong!r}",
            )
            for name, wrong in WRONG_PARAMS
        ),
        (
            lambda llm: llm.generate("x", SamplingParams(temperature=-1)),
            trail_rt.RequestError,
            "temperature must be between 0 and 100, not -1",
        ),
        (lambda llm: llm.generate("x", {}), trail_rt.RequestError, "give a SamplingParams"),
        (
            lambda llm: llm.generate(["x", "y"], [SamplingParams()]),
            trail_rt.RequestError,
            "1 entries for 2 prompts",
        ),
        (
            lambda llm: llm.generate(["x", "y"], []),
            trail_rt.RequestError,
            "0 entries for 2 prompts",
        ),
        (
            lambda llm: llm.generate("x", priority=[1000]),
            trail_rt.RequestError,
            "priority is 1000: give a number from -127 to 127",
        ),
        (lambda llm: llm.chat({"role": "user"}), trail_rt.RequestError, "a list of turns"),
        (lambda llm: llm.chat([{"role": "user"}]), trail_rt.RequestError, "'content': text"),
    ],
)
def test_errors_have_a_kind_and_one_line(
    llm: LLM, call: Callable[[LLM], object], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as error:
        call(llm)
    assert isinstance(error.value, trail_rt.TrailError)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_more_prompts_than_the_engine_holds(golden: list[dict[str, Any]]) -> None:
    llm = LLM(threads=1, max_running=2, max_requests=2)
    prompts = [of["prompt_tokens"] for of in golden] * 2
    params = SamplingParams(temperature=0, max_tokens=4)
    outputs = llm.generate(prompts, params)
    tokens = [output.outputs[0].token_ids for output in outputs]
    assert tokens == [of["tokens"][:4] for of in golden] * 2


def test_a_full_engine_is_no_fault_of_the_request() -> None:
    llm = LLM(threads=1, max_running=1, max_requests=1)
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    for _ in llm.stream("a", params):
        with pytest.raises(trail_rt.EngineError, match="try again later"):
            llm.generate(["b", "c"], params)
        break


def test_vllm_names_of_options() -> None:
    llm = LLM(max_num_seqs=3, max_num_batched_tokens=64, max_model_len=128, threads=1)
    assert (llm.llm_engine.max_num_seqs, llm.llm_engine.max_model_len) == (3, 128)
