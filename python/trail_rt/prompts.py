"""Forms of a prompt, and options of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, cast

from trail_rt._native import Engine, RequestError

BUNDLED_MODEL = Path(__file__).parent / "assets" / "demo"
"""The model of 4.4 M parameters that the package has with it."""

ALIASES = {"max_num_seqs": "max_running", "max_num_batched_tokens": "token_budget"}
"""vLLM's names of options that have another one here."""

Option = str | int | float | bool | Path | None
"""The value of an option of `trail-rt serve`."""


class TokensPrompt(TypedDict):
    """A prompt of token ids."""

    prompt_token_ids: list[int]


class ChatMessage(TypedDict):
    """A turn of a conversation."""

    role: str
    content: str


Prompt = str | list[int] | TokensPrompt
"""A text, or token ids."""


def prompt_tokens(engine: Engine, prompt: Prompt) -> tuple[str | None, list[int]]:
    """The text of a prompt, if it has one, and its tokens."""
    if isinstance(prompt, str):
        return prompt, engine.encode(prompt)
    if isinstance(prompt, dict):
        return None, list(prompt["prompt_token_ids"])
    return None, list(prompt)


def chat_tokens(engine: Engine, messages: Sequence[ChatMessage]) -> list[int]:
    """The tokens of a conversation."""
    return engine.encode_chat([(turn["role"], turn["content"]) for turn in messages])


def open_engine(model: str | Path | None, options: dict[str, Option]) -> Engine:
    """Starts the engine of a model, by the options of `trail-rt serve` with `_` for `-`."""
    arguments = ["--model", str(BUNDLED_MODEL if model is None else model)]
    for name, value in options.items():
        option = "--" + ALIASES.get(name, name).replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments += [option, str(value)]
    return Engine(arguments)


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """The prompts. One alone need not be in a list."""
    if isinstance(prompts, str) or "prompt_token_ids" in prompts:
        return [cast(Prompt, prompts)]
    if not prompts:
        raise RequestError("there is no prompt: give a text, token ids, or a list of prompts")
    first = cast(Sequence[object], prompts)[0]
    return [cast(Prompt, prompts)] if isinstance(first, int) else cast(Sequence[Prompt], prompts)


def conversations(
    messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
) -> Sequence[Sequence[ChatMessage]]:
    """The conversations. One alone need not be in a list."""
    if not messages:
        raise RequestError("there is no message: give a list of turns")
    if isinstance(messages[0], dict):
        return [cast(Sequence[ChatMessage], messages)]
    return cast(Sequence[Sequence[ChatMessage]], messages)
