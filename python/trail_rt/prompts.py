"""Forms of a prompt, and options of a model."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, cast

from trail_rt._native import Engine, RequestError, check_option

BUNDLED_MODEL = Path(__file__).parent / "assets" / "demo"
"""The model of 4.4 M parameters that the package has with it."""

ALIASES = {"max_num_seqs": "max_running", "max_num_batched_tokens": "token_budget"}
"""vLLM's names of options that have another one here."""

Option = str | int | float | bool | Path | None
"""The value of an option of `trail-rt serve`."""


class TextPrompt(TypedDict):
    """A prompt of text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt of token ids."""

    prompt_token_ids: Sequence[int]


class ChatMessage(TypedDict):
    """A turn of a conversation."""

    role: str
    content: str


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt
"""A text, or token ids."""

FORMS = "a text, a list of token ids, {'prompt': text} or {'prompt_token_ids': ids}"


def prompt_tokens(engine: Engine, prompt: Prompt) -> tuple[str | None, list[int]]:
    """The text of a prompt, if it has one, and its tokens."""
    content = _content(prompt)
    if isinstance(content, str):
        return content, engine.encode(content)
    return None, _token_ids(content)


def prompt_characters(prompt: Prompt) -> int:
    """Characters of a prompt's text; 0 without one."""
    content = _content(prompt)
    return len(content) if isinstance(content, str) else 0


def _content(prompt: Prompt) -> str | Sequence[int]:
    if not isinstance(prompt, dict):
        return prompt
    content: object = prompt.get("prompt_token_ids", prompt.get("prompt"))
    if content is None or set(prompt) - {"prompt_token_ids", "prompt"}:
        raise RequestError(f"a prompt has the keys {sorted(prompt)}: give {FORMS}")
    if "prompt_token_ids" not in prompt and not isinstance(content, str):
        raise RequestError(f"the prompt is {_shown(content)}: give {FORMS}")
    return cast("str | Sequence[int]", content)


def _token_ids(ids: Sequence[int]) -> list[int]:
    try:
        tokens = [operator.index(token) for token in ids]
    except TypeError:
        raise RequestError(f"a prompt is {_shown(ids)}: give {FORMS}") from None
    for token in tokens:
        if not 0 <= token < 2**32:
            raise RequestError(f"token {token} is not in the vocabulary: give ids of 0 or more")
    return tokens


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _field(turn: object, name: str) -> object:
    return cast("dict[str, object]", turn).get(name) if isinstance(turn, dict) else None


def chat_tokens(engine: Engine, messages: Sequence[ChatMessage]) -> list[int]:
    """The tokens of a conversation."""
    turns: list[tuple[str, str]] = []
    for turn in messages:
        role, content = _field(turn, "role"), _field(turn, "content")
        if not isinstance(role, str) or not isinstance(content, str):
            raise RequestError(
                f"a message is {_shown(turn)}: give {{'role': 'user', 'content': text}}"
            )
        turns.append((role, content))
    return engine.encode_chat(turns)


def open_engine(model: str | Path | None, options: dict[str, Option]) -> Engine:
    """Starts the engine of a model, by the options of `trail-rt serve` with `_` for `-`."""
    arguments = ["--model", str(BUNDLED_MODEL if model is None else model)]
    for name, value in options.items():
        option = "--" + ALIASES.get(name, name).replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value is None or value is False:
            check_option(option)
        else:
            # One argument: a negative number is no option.
            arguments.append(f"{option}={value}")
    return Engine(arguments)


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """The prompts. One alone need not be in a list."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    try:
        every = list(cast("Sequence[Prompt]", prompts))
    except TypeError:
        raise RequestError(f"a prompt is {_shown(prompts)}: give {FORMS}") from None
    if not every:
        raise RequestError("there is no prompt: give a text, token ids, or a list of prompts")
    is_one = isinstance(cast(object, every[0]), numbers.Integral)
    return [cast(Prompt, prompts)] if is_one else every


def conversations(
    messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
) -> Sequence[Sequence[ChatMessage]]:
    """The conversations. One alone need not be in a list."""
    if isinstance(messages, (str, dict)):
        raise RequestError(f"the messages are {_shown(messages)}: give a list of turns")
    if not len(messages):
        raise RequestError("there is no message: give a list of turns")
    if isinstance(messages[0], dict):
        return [cast(Sequence[ChatMessage], messages)]
    return cast(Sequence[Sequence[ChatMessage]], messages)
