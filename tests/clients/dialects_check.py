"""Checks the newer dialects of a running trail-rt server with the official clients.

    pip install openai==2.54.0 anthropic==2.13.0
    trail-rt serve --port 8000 --api-key sk-check [--embedding-model PATH] &
    python tests/clients/dialects_check.py http://127.0.0.1:8000 sk-check

Prints one line per check and exits with 1 at the first that fails. Embeddings are checked if the
server has a model for them.
"""

import sys

import anthropic
import openai

MESSAGES = [{"role": "user", "content": "Show the table of 9 from 1 to 4."}]
GREEDY = {"temperature": 0}


def check(name: str, holds: bool, detail: object = "") -> None:
    print(f"{'ok  ' if holds else 'FAIL'} {name} {detail}")
    if not holds:
        sys.exit(1)


def refused(kind: type, call) -> object:
    try:
        call()
    except kind as error:
        return error
    return None


def check_messages(base: str, key: str, model: str) -> None:
    client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0)
    asked = dict(model=model, max_tokens=24, messages=MESSAGES, extra_body=GREEDY)
    whole = client.messages.create(**asked)
    text = whole.content[0].text
    check("message", whole.stop_reason in ("end_turn", "max_tokens"), repr(text[:40]))
    with client.messages.stream(**asked) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("message stream says the same", streamed == text)
    check("stream counts as the message", final.usage.output_tokens == whole.usage.output_tokens)
    count = client.messages.count_tokens(model=model, messages=MESSAGES)
    usage = whole.usage
    check("tokens are counted", count.input_tokens == usage.input_tokens
          + usage.cache_read_input_tokens)
    stop = dict(asked, stop_sequences=[text[4:7]])
    check("stop sequence", client.messages.create(**stop).stop_sequence == text[4:7])
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    error = refused(anthropic.BadRequestError, lambda: client.messages.create(**asked, tools=tools))
    check("tools are refused", error is not None and error.request_id is not None)
    other = anthropic.Anthropic(base_url=base, api_key="wrong", max_retries=0)
    error = refused(anthropic.AuthenticationError, lambda: other.messages.create(**asked))
    check("a wrong key is refused", error is not None)


def check_responses(client: openai.OpenAI, model: str) -> None:
    asked = dict(model=model, input="Spell house.", max_output_tokens=200, temperature=0)
    whole = client.responses.create(**asked)
    check("response", whole.status == "completed", repr(whole.output_text[:40]))
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    check("response stream says the same", final.output_text == whole.output_text)
    cut = client.responses.create(**dict(asked, max_output_tokens=3))
    check("a cut response says so", cut.incomplete_details.reason == "max_output_tokens")
    following = dict(asked, input="And mouse.", previous_response_id=whole.id)
    more = client.responses.create(**following)
    check("a response goes on", more.usage.input_tokens > whole.usage.total_tokens)
    check("a response is kept", client.responses.retrieve(whole.id).id == whole.id)
    client.responses.delete(whole.id)
    error = refused(openai.NotFoundError, lambda: client.responses.retrieve(whole.id))
    check("and deleted", error is not None)


def check_embeddings(client: openai.OpenAI, model: str) -> None:
    asked = dict(model=model, input=["a", "b a"])
    packed = client.embeddings.create(**asked)
    plain = client.embeddings.create(**asked, encoding_format="float")
    for one, other in zip(packed.data, plain.data, strict=True):
        pairs = list(zip(one.embedding, other.embedding, strict=True))
        check("base64 has the numbers", all(abs(a - b) < 1e-7 for a, b in pairs), len(pairs))
        check("length 1", abs(sum(a * a for a, _ in pairs) - 1) < 1e-5)


def main(base: str, key: str) -> None:
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0)
    models = list(client.models.list())
    served = [model.id for model in models if getattr(model, "max_model_len", None)]
    encoders = [model.id for model in models if not getattr(model, "max_model_len", None)]
    check("models are listed", len(served) >= 1, served + encoders)
    check_messages(base, key, served[0])
    check_responses(client, served[0])
    for encoder in encoders:
        check_embeddings(client, encoder)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2] if len(sys.argv) > 2 else "none")
