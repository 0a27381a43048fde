"""Forms of a prompt, and options of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

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


def is_one_prompt(prompts: Prompt | Sequence[Prompt]) -> bool:
    """True for a prompt that is not in a list."""
    if isinstance(prompts, (str, dict)):
        return True
    if not prompts:
        raise RequestError("there is no prompt: give a text, token ids, or a list of them")
    return isinstance(prompts[0], int)
