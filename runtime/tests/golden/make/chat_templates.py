"""Records what transformers' environment makes of chat templates and conversations.

    python chat_templates.py ../../text/templates

The folder has the inputs: a template per file (*.jinja) and per line of expressions.txt, and
conversations.json. The results go to recorded.json: for each template one place in the list of
texts for each conversation, or one number where all are equal; -1 where it was refused.
"""

import json
import signal
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source, conversation):
    """Returns the text, or None if the environment refuses."""
    signal.alarm(10)
    try:
        text = _compile_jinja_template(source).render(
            messages=conversation["messages"],
            tools=conversation.get("tools"),
            documents=None,
            add_generation_prompt=conversation["add_generation_prompt"],
            **TOKENS,
        )
        # No text of a prompt: half a character, or the address of an object.
        if " at 0x" in text:
            sys.exit(f"an address is in {text!r} of {source!r}")
        text.encode("utf-8")
        return text
    except Exception as error:
        if "-v" in sys.argv:
            print(f"{source[:70]!r}: {error!r}"[:160])
        return None
    finally:
        signal.alarm(0)


def main(folder):
    conversations = json.loads((folder / "conversations.json").read_text("utf-8"))
    files = sorted(folder.glob("*.jinja"))
    templates = [(file.name, file.read_text("utf-8")) for file in files]
    lines = (folder / "expressions.txt").read_text("utf-8").split("\n")[:-1]
    templates += [(f"line {at}", line) for at, line in enumerate(lines, 1)]
    places = {None: -1}
    results = {}
    for name, source in templates:
        texts = [render(source, conversation) for conversation in conversations]
        found = [places.setdefault(text, len(places) - 1) for text in texts]
        results[name] = found[0] if len(set(found)) == 1 else found
    texts = [text for text in places if text is not None]
    rows = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in results.items()]
    lines = [json.dumps(text, ensure_ascii=False) for text in texts]
    (folder / "recorded.json").write_text(
        '{"results": {\n' + ",\n".join(rows) + '},\n"texts": [\n' + ",\n".join(lines) + "]}\n",
        "utf-8",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
