"""Answers of a given form and calls of tools, by the clients that programs are made of.

    tests/clients/run.sh                          # installs the clients and runs this
    python tests/clients/frameworks_check.py http://127.0.0.1:8000

An answer must parse and validate, and a forced call must be one of the tool, whatever a small model
says. Tools are checked where the model's template shows them. Prints a line a check, or what went
wrong; exit code 1 if something did.
"""

import asyncio
import importlib.metadata
import json
import os
import sys
import typing
import warnings

# Otherwise litellm asks the network for prices of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
warnings.filterwarnings("ignore")

import openai  # noqa: E402
import pydantic  # noqa: E402

ROOT = sys.argv[1].rstrip("/")
BASE = f"{ROOT}/v1"
KEY = {"base_url": BASE, "api_key": "none", "max_retries": 0}
CLIENT = openai.OpenAI(**KEY)
MODEL = CLIENT.models.list().data[0].id
TEXT = "Bern is a city of 134794 people. Describe it."
MESSAGES = [{"role": "user", "content": TEXT}]
# Enough for any City, with whitespace at its longest between all parts.
TOKENS = 700


class City(pydantic.BaseModel):
    """A city."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(min_length=1, max_length=12)
    people: int = pydantic.Field(ge=0, le=99_999_999)
    kind: typing.Literal["town", "capital"]


SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "city", "strict": True, "schema": City.model_json_schema()},
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
        "type": "object", "required": ["city"], "additionalProperties": False,
        "properties": {"city": {"type": "string", "maxLength": 20}}}},
}
ASK = [{"role": "user", "content": "What is the weather in Bern?"}]


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"It is sunny in {city}."


CHECKS: list[tuple[str, str, bool, typing.Callable]] = []


def check(client: str, name: str, tools: bool = False):
    """Makes a function a check; with `tools` one that needs a template that shows them."""
    def add(function):
        CHECKS.append((client, name, tools, function))
        return function
    return add


def holds(condition: object, detail: object) -> object:
    """The detail if the condition holds, and otherwise an error with it."""
    if not condition:
        raise AssertionError(detail)
    return detail


def chat(**fields):
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": TOKENS, "seed": 1}
    return CLIENT.chat.completions.create(**(asked | fields))


def content(**fields) -> str:
    return chat(**fields).choices[0].message.content


def pieces(**fields) -> tuple[str, list]:
    """The text of a stream, and its pieces of calls."""
    text, calls = "", []
    for chunk in chat(stream=True, **fields):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += choice.delta.tool_calls or []
    return text, calls


# openai

@check("openai", "chat, and its stream says the same")
def _():
    whole = content(max_tokens=24)
    return holds(whole and pieces(max_tokens=24)[0] == whole, whole)


@check("openai", "json_schema, and its stream says the same")
def _():
    whole = content(response_format=SCHEMA)
    return holds(pieces(response_format=SCHEMA)[0] == whole, City.model_validate_json(whole))


@check("openai", "json_object")
def _():
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}}
    form = {"type": "json_object", "schema": schema | {"additionalProperties": False}}
    return json.loads(content(response_format=form))


@check("openai", "parse()")
def _():
    asked = dict(model=MODEL, messages=MESSAGES, response_format=City, max_tokens=TOKENS)
    return holds(parsed := CLIENT.chat.completions.parse(**asked).choices[0].message.parsed, parsed)


@check("openai", "log-probabilities")
def _():
    tokens = chat(logprobs=True, top_logprobs=3, max_tokens=8).choices[0].logprobs.content
    return holds(len(tokens[0].top_logprobs) == 3, [token.logprob for token in tokens])


@check("openai", "completions with echo and log-probabilities")
def _():
    asked = dict(model=MODEL, prompt="Once upon a time", echo=True, logprobs=1, max_tokens=0)
    found = CLIENT.completions.create(**asked).choices[0]
    scores = found.logprobs.token_logprobs
    return holds(found.text == "Once upon a time" and scores[0] is None and scores[-1] < 0, scores)


@check("openai", "tools: automatic choice, and its stream says the same", tools=True)
def _():
    whole = chat(messages=ASK, tools=[WEATHER], temperature=0).choices[0].message
    text, calls = pieces(messages=ASK, tools=[WEATHER], temperature=0)
    wanted = "".join(call.function.arguments for call in whole.tool_calls or [])
    found = "".join(call.function.arguments or "" for call in calls)
    return holds((text, found) == (whole.content or "", wanted), whole.content or wanted)


@check("openai", "tools: required and named choices, their streams, the result", tools=True)
def _():
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ["required", named]:
        asked = dict(tools=[WEATHER], tool_choice=choice, messages=ASK)
        call = chat(**asked).choices[0].message.tool_calls[0]
        city = json.loads(call.function.arguments)["city"]
        streamed = "".join(piece.function.arguments or "" for piece in pieces(**asked)[1])
        holds(json.loads(streamed) == {"city": city}, streamed)
    result = {"role": "tool", "tool_call_id": call.id, "content": get_weather(city)}
    turn = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    return city, content(messages=[*ASK, turn, result], tools=[WEATHER], max_tokens=32)


# litellm

def litellm(**fields):
    import litellm
    litellm.suppress_debug_info = True
    asked = dict(model=f"hosted_vllm/{MODEL}", api_base=BASE, api_key="none", messages=MESSAGES,
                 max_tokens=TOKENS, num_retries=0)
    return litellm.completion(**(asked | fields)).choices[0].message


@check("litellm", "response_format of a model")
def _():
    return City.model_validate_json(litellm(response_format=City).content)


@check("litellm", "tools: required", tools=True)
def _():
    asked = dict(tools=[WEATHER], tool_choice="required", messages=ASK)
    return json.loads(litellm(**asked).tool_calls[0].function.arguments)["city"]


# langchain-openai

def langchain():
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(model=MODEL, max_tokens=TOKENS, temperature=1, seed=1, **KEY)


@check("langchain-openai", "with_structured_output")
def _():
    found = langchain().with_structured_output(City).invoke(TEXT)
    return holds(isinstance(found, City), found)


@check("langchain-openai", "with_structured_output by a call", tools=True)
def _():
    found = langchain().with_structured_output(City, method="function_calling").invoke(TEXT)
    return holds(isinstance(found, City), found)


@check("langchain-openai", "bind_tools", tools=True)
def _():
    asked = langchain().bind_tools([WEATHER], tool_choice="required").invoke(ASK)
    return holds(asked.tool_calls[0]["name"] == "get_weather", asked.tool_calls)


# instructor

def instructor(mode: str) -> City:
    import instructor
    client = instructor.from_openai(CLIENT, mode=instructor.Mode[mode])
    asked = dict(model=MODEL, messages=MESSAGES, max_tokens=TOKENS, response_model=City)
    return client.chat.completions.create(max_retries=0, **asked)


@check("instructor", "JSON_SCHEMA")
def _():
    return instructor("JSON_SCHEMA")


@check("instructor", "TOOLS", tools=True)
def _():
    return instructor("TOOLS")


# pydantic-ai

def pydantic_ai(output=str, **fields):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(**KEY))
    settings = {"max_tokens": TOKENS, "temperature": 1, "seed": 1}
    model = OpenAIChatModel(MODEL, provider=provider)
    return Agent(model, output_type=output, model_settings=settings, retries=0, **fields)


@check("pydantic-ai", "NativeOutput")
def _():
    from pydantic_ai import NativeOutput
    found = asyncio.run(pydantic_ai(NativeOutput(City)).run(TEXT)).output
    return holds(isinstance(found, City), found)


@check("pydantic-ai", "output by a call", tools=True)
def _():
    found = asyncio.run(pydantic_ai(City).run(TEXT)).output
    return holds(isinstance(found, City), found)


@check("pydantic-ai", "an agent with a tool", tools=True)
def _():
    return asyncio.run(pydantic_ai(tools=[get_weather]).run(ASK[0]["content"])).output


# outlines

def outlines(form, by: str = "vllm"):
    import outlines
    model = getattr(outlines, f"from_{by}")(CLIENT, MODEL)
    return model(TEXT, form, max_tokens=TOKENS)


@check("outlines", "a model, by the fields of OpenAI, vLLM and SGLang")
def _():
    found = [outlines(City, by) for by in ["openai", "vllm", "sglang"]]
    return [City.model_validate_json(text).name for text in found]


@check("outlines", "a regular expression, a choice, a grammar")
def _():
    from outlines.types import CFG, Choice, Regex
    code = outlines(Regex("[A-Z]{2}-[0-9]{3}"))
    choice = outlines(Choice(["left", "right"]))
    sums = outlines(CFG('start: /[0-9]/ ("+" /[0-9]/)~1..3\n'))
    return holds(code[2] == "-" and choice in ["left", "right"] and "+" in sums,
                 (code, choice, sums))


# guidance

def guidance(model, form) -> str:
    import guidance as lib
    made = model(MODEL, echo=False, base_url=BASE, api_key="none")
    with lib.user():
        made += TEXT
    with lib.assistant():
        made += form
    return made["found"]


@check("guidance", "json, by the fields of OpenAI and vLLM")
def _():
    import guidance as lib
    from guidance.models.experimental import VLLMModel
    form = lib.json(name="found", schema=City)
    found = [guidance(model, form) for model in [lib.models.OpenAI, VLLMModel]]
    return [City.model_validate_json(text).name for text in found]


@check("guidance", "select and a regular expression")
def _():
    import guidance as lib
    from guidance.models.experimental import VLLMModel
    form = lib.select(["left", "right"]) + "-" + lib.gen("found", regex="[0-9]{2,4}")
    return holds((found := guidance(VLLMModel, form)).isdigit(), found)


def shows_tools() -> bool:
    """True if the model's template shows tools."""
    try:
        chat(tools=[WEATHER], max_tokens=1)
        return True
    except openai.BadRequestError:
        return False


def main() -> int:
    failed, has_tools = 0, shows_tools()
    for client, name, needs_tools, function in CHECKS:
        if needs_tools and not has_tools:
            continue
        try:
            print(f"ok   {client}: {name}: {str(function())[:70]!r}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {client}: {name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
    if not has_tools:
        print(f"skipped: tools, as the template of {MODEL} shows none")
    distributions = ["pydantic-ai-slim" if client == "pydantic-ai" else client
                     for client in dict.fromkeys(row[0] for row in CHECKS)]
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in distributions))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
