"""Checks a running trail-rt server with the official openai client.

    pip install openai
    trail-rt serve --port 8000 &
    python tests/clients/openai_check.py http://127.0.0.1:8000

Prints one line per check and exits with 1 at the first that fails.
"""

import sys
import time
import urllib.request

import openai

# Long enough to be still running when the client leaves.
LONG = 900


def metric(base: str, name: str) -> float:
    with urllib.request.urlopen(f"{base}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    raise SystemExit(f"no metric {name}")


def wait_for(base: str, name: str, value: float, seconds: float = 30.0) -> float:
    start = time.monotonic()
    while metric(base, name) != value:
        if time.monotonic() - start > seconds:
            raise SystemExit(f"{name} did not become {value}")
        time.sleep(0.02)
    return time.monotonic() - start


def check(name: str, holds: bool, detail: object = "") -> None:
    print(f"{'ok  ' if holds else 'FAIL'} {name} {detail}")
    if not holds:
        sys.exit(1)


def main(base: str) -> None:
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    models = [model.id for model in client.models.list()]
    check("models are listed", len(models) == 1, models)
    model = models[0]
    check("one model by name", client.models.retrieve(model).id == model)

    asked = dict(model=model, prompt="Count to ten.", max_tokens=24, seed=7)
    whole = client.completions.create(**asked)
    check("completion", whole.usage.completion_tokens > 0, repr(whole.choices[0].text[:60]))
    pieces = client.completions.create(**asked, stream=True)
    text = "".join(piece.choices[0].text for piece in pieces)
    check("completion stream says the same", text == whole.choices[0].text)

    asked = dict(
        model=model,
        messages=[{"role": "user", "content": "Tell me a short story."}],
        max_completion_tokens=80,
        seed=7,
    )
    whole = client.chat.completions.create(**asked)
    message = whole.choices[0].message
    check("chat", message.role == "assistant", repr(message.content[:60]))
    pieces = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    check("chat stream says the same", text == message.content)
    counts = [(usage.prompt_tokens, usage.completion_tokens)
              for usage in [pieces[-1].usage, whole.usage]]
    check("chat stream ends with the usage", counts[0] == counts[1], counts[0])
    scored = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    check("log-probabilities", len(scored.choices[0].logprobs.content[0].top_logprobs) == 2)

    for name, kind, call in [
        (
            "bad field",
            openai.BadRequestError,
            lambda: client.chat.completions.create(**asked, temperature=-1),
        ),
        (
            "other model",
            openai.NotFoundError,
            lambda: client.completions.create(model="gpt-4", prompt="a"),
        ),
    ]:
        try:
            call()
            check(f"{name} is refused", False)
        except kind as error:
            check(f"{name} is refused", True, error.body["message"][:70])

    wait_for(base, "trail_requests_running", 0)
    long = dict(model=model, prompt="a", max_tokens=LONG, extra_body={"ignore_eos": True})
    stream = client.completions.create(**long, stream=True)
    next(iter(stream))
    check("a stream is running", metric(base, "trail_requests_running") == 1)
    stream.close()
    seconds = wait_for(base, "trail_requests_running", 0)
    check("a dropped stream frees its request index", True, f"after {seconds * 1e3:.0f} ms")
    try:
        # Repeated tokens come several a step, so one answer could be complete by then.
        client.completions.create(**long, n=16, timeout=0.3)
        check("a client that gives up", False, "the answers came first: raise n")
    except openai.APITimeoutError:
        seconds = wait_for(base, "trail_requests_running", 0)
        check("a client that gives up frees its request index", True, f"after {seconds * 1e3:.0f} ms")
    check("no KV block is left in use", metric(base, "trail_kv_blocks_used") == 0)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8000")
