"""Compares lm-eval's tasks on a server of the bundled model with its own run of transformers.

    tests/clients/lm_eval.sh                      # installs lm-eval and runs this
    python tests/clients/lm_eval_check.py PROGRAM [--reference]

The four kinds of tasks of lm_eval/ by `local-completions`: every log-likelihood must be that of
reference.json within 1e-3, every answer and metric the same (of a perplexity the logarithm).
`--reference` writes that file by lm-eval's `hf` backend in f32 first; it needs torch, accelerate
and peft.
"""

import json
import math
import os
import pathlib
import re
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent / "lm_eval"
MODEL = HERE.parents[2] / "assets" / "demo"
REFERENCE = HERE / "reference.json"
TASKS = ["trail_sums", "trail_greedy", "trail_answers", "trail_texts"]
# Tokens of a window of the rolling task.
WINDOW = 96
TOLERANCE = 1e-3


def run(backend: str, **arguments) -> dict:
    """By task: its metrics, and what each request of it got."""
    # The tasks name their data by relative paths.
    os.chdir(HERE)
    found = lm_eval.simple_evaluate(
        model=backend,
        model_args=arguments,
        tasks=TASKS,
        task_manager=TaskManager(include_path=str(HERE), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    tasks = {}
    for task in TASKS:
        metrics = {name: value for name, value in found["results"][task].items()
                   if isinstance(value, float) and "stderr" not in name}
        # A perplexity is the exponential of what is compared.
        metrics = {name: math.log(value) if "perplexity" in name else value
                   for name, value in metrics.items()}
        samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
        tasks[task] = {"metrics": metrics, "answers": [sample["resps"] for sample in samples]}
    # As JSON has it: no tuples.
    return json.loads(json.dumps(tasks))


def differences(found, wanted, path: str) -> list[str]:
    """Where two results differ, with what they are."""
    if isinstance(wanted, dict):
        wanted, found = list(wanted.items()), list(found.items())
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return [f"{path}: {found} instead of {wanted}"]
        return [line for at, (one, other) in enumerate(zip(found, wanted))
                for line in differences(one, other, f"{path}[{at}]")]
    if isinstance(wanted, float) and isinstance(found, float):
        largest.append(abs(found - wanted))
        return [] if largest[-1] <= TOLERANCE else [f"{path}: {found} instead of {wanted}"]
    return [] if found == wanted else [f"{path}: {found!r} instead of {wanted!r}"]


def served(program: str) -> dict:
    """The same by a server of `program`."""
    command = [program, "serve", "--model", MODEL, "--compute", "exact", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = server.stdout.readline()
        address = re.search(r"http://\S+", line)
        if not address:
            sys.exit(f"FAIL the server did not start: {line}")
        return run(
            "local-completions", model="demo", base_url=f"{address[0]}/v1/completions",
            tokenizer=str(MODEL), tokenizer_backend="huggingface", num_concurrent=4, batch_size=3,
            # The backend takes two off for the token that it asks for.
            max_length=WINDOW + 2,
        )
    finally:
        server.terminate()
        server.wait()


largest: list[float] = []
program = str(pathlib.Path(sys.argv[1]).resolve())
if "--reference" in sys.argv:
    wanted = run("hf", pretrained=str(MODEL), dtype="float32", device="cpu", max_length=WINDOW,
                 batch_size=1)
    REFERENCE.write_text(json.dumps(wanted, indent=1, ensure_ascii=False) + "\n")
wanted = json.loads(REFERENCE.read_text())
found = served(program)
for task in TASKS:
    print(task, found[task]["metrics"])
different = differences(found, wanted, "")
for line in different[:10]:
    print("FAIL", line)
print(f"{len(largest)} numbers, the largest difference is {max(largest):.1e}")
sys.exit(1 if different else 0)
