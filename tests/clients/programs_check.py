"""llama-index and the programs `llm`, aider and aiperf, on a running trail-rt server.

    tests/clients/run.sh                       # installs them and runs this
    python tests/clients/programs_check.py http://127.0.0.1:8000 --folder FOLDER

FOLDER has an environment of Python for each, as their dependencies exclude each other; what is not
there is skipped with a line.

aider is asked for an edit in one shot where the context has room for its prompt; if the answer is
one depends on the model, and is printed. aiperf sends 1.2 times the requests that the server
completes; none may fail but by 429. Prints a line a check, or what went wrong; exit code 1 if
something did.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import typing
import urllib.request

PARSER = argparse.ArgumentParser()
PARSER.add_argument("url")
PARSER.add_argument("--folder", type=pathlib.Path, required=True)
ARGUMENTS = PARSER.parse_args()
ROOT = ARGUMENTS.url.rstrip("/")
BASE = f"{ROOT}/v1"
CARD = json.load(urllib.request.urlopen(f"{BASE}/models"))["data"][0]
MODEL = CARD["id"]
TEXT = "Count to ten."
# Of the bundled model: that of another one would come from the network.
TOKENIZER = str(pathlib.Path(__file__).parents[2] / "assets" / "demo")
# aider's prompt has some 700 tokens.
LEAST_CONTEXT = 2048


def holds(condition: object, detail: object) -> object:
    """The detail if the condition holds, and otherwise an error with it."""
    if not condition:
        raise AssertionError(detail)
    return detail


def program(name: str) -> str:
    """The path of a program in the environment of its name."""
    return str(ARGUMENTS.folder / name / "bin" / name)


def run(*command: str, folder: str | None = None, **variables: str) -> str:
    """Output of `command`; an error with its end if it fails."""
    environment = os.environ | {"OPENAI_API_KEY": "none", "TERM": "dumb"} | variables
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder,
                           stdin=subprocess.DEVNULL, timeout=600)
    holds(ended.returncode == 0, (ended.stdout + ended.stderr)[-400:])
    return ended.stdout


# llama-index

LLAMA_INDEX = """
import json, sys
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
model, base, text = sys.argv[1:]
def client(is_chat):
    return OpenAILike(model=model, api_base=base, api_key="none", is_chat_model=is_chat,
                      max_tokens=24, temperature=0, max_retries=0)
turns = [ChatMessage(role="user", content=text)]
print(json.dumps([client(True).chat(turns).message.content,
                  "".join(part.delta or "" for part in client(True).stream_chat(turns)),
                  client(False).complete("Once").text]))
"""


def llama_index() -> object:
    python = ARGUMENTS.folder / "llama-index" / "bin" / "python"
    whole, streamed, completion = json.loads(run(str(python), "-c", LLAMA_INDEX, MODEL, BASE, TEXT))
    return holds(whole and streamed == whole and completion, (whole, streamed, completion))


# llm

def llm(*arguments: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        models = [{"model_id": "trail", "model_name": MODEL, "api_base": BASE,
                   "supports_schema": True}]
        # JSON is YAML.
        (pathlib.Path(folder) / "extra-openai-models.yaml").write_text(json.dumps(models))
        command = [program("llm"), "-m", "trail", *arguments, "-o", "seed", "1"]
        return run(*command, LLM_USER_PATH=folder)


def llm_prompt() -> object:
    whole = llm(TEXT, "-o", "max_tokens", "24", "-o", "temperature", "0", "--no-stream")
    streamed = llm(TEXT, "-o", "max_tokens", "24", "-o", "temperature", "0")
    return holds(whole.strip() and streamed == whole, (whole, streamed))


def llm_schema() -> object:
    schema = {"type": "object", "required": ["people"], "additionalProperties": False,
              "properties": {"people": {"type": "integer", "minimum": 0, "maximum": 999}}}
    found = json.loads(llm(TEXT, "--schema", json.dumps(schema), "-o", "max_tokens", "200"))
    return holds(isinstance(found["people"], int), found)


# aider

def aider() -> object:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "a.py"
        file.write_text("def f():\n    return 1\n")
        # A small model may not end its answer.
        settings = [{"name": f"openai/{MODEL}", "extra_params": {"max_tokens": 200, "seed": 1}}]
        (pathlib.Path(folder) / "settings.yml").write_text(json.dumps(settings))
        printed = run(
            program("aider"), "--model", f"openai/{MODEL}", "--openai-api-base", BASE,
            "--edit-format", "whole", "--yes-always", "--no-git", "--no-check-update",
            "--no-analytics", "--no-show-model-warnings", "--no-detect-urls", "--map-tokens", "0",
            "--model-settings-file", "settings.yml",
            "--message", "Make f return 2", "a.py", folder=folder, HOME=folder,
            LITELLM_LOCAL_MODEL_COST_MAP="True")
        # A small model may answer with something else than an edit.
        edited = "edited" if "return 2" in file.read_text() else "answered, and edited nothing"
        return holds(" received." in printed or "Output tokens" in printed, printed[-400:]), edited


# aiperf

def aiperf(*arguments: str) -> dict:
    """The report of a run."""
    with tempfile.TemporaryDirectory() as folder:
        run(program("aiperf"), "profile", "--model", MODEL, "--url", ROOT, "--tokenizer", TOKENIZER,
            "--endpoint-type", "chat", "--streaming", "--isl", "32", "--osl", "32",
            "--extra-inputs", "ignore_eos:true", "--artifact-dir", folder, "--ui", "none",
            *arguments)
        report = next(pathlib.Path(folder).rglob("profile_export_aiperf.json"))
        return json.loads(report.read_text())


def aiperf_overload() -> object:
    served = aiperf("--concurrency", "32", "--request-count", "200")
    capacity = served["request_throughput"]["avg"]
    rate = ["--request-rate", str(1.2 * capacity), "--request-count", str(int(20 * capacity))]
    loaded = aiperf(*rate)
    codes = [error["error_details"]["code"] for error in loaded.get("error_summary") or []]
    answered = loaded["request_count"]["avg"]
    return holds(set(codes) <= {429} and answered > 0,
                 f"{answered:.0f} answers at {1.2 * capacity:.1f} requests/s, errors {codes}")


CHECKS: list[tuple[str, str, typing.Callable[[], object]]] = [
    ("llama-index", "chat, its stream says the same, completion", llama_index),
    ("llm", "a prompt, and its stream says the same", llm_prompt),
    ("llm", "--schema", llm_schema),
    ("aider", "an edit in one shot", aider),
    ("aiperf", "1.2 times the capacity, no error but 429", aiperf_overload),
]


def reason_to_skip(name: str) -> str | None:
    if not (ARGUMENTS.folder / name).is_dir():
        return "it is not installed"
    if name == "aider" and CARD["max_model_len"] < LEAST_CONTEXT:
        return f"{MODEL} has no room for its prompt"
    return None


def main() -> int:
    failed = 0
    for client, name, function in CHECKS:
        if why := reason_to_skip(client):
            print(f"skipped: {client}: {name}, as {why}")
            continue
        try:
            print(f"ok   {client}: {name}: {str(function())[:70]!r}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {client}: {name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
