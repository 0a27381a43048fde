"""Records what transformers makes of chats with tools, as clients send them.

    python tool_chats.py ../../text/templates ../../../../server/golden/tool_chats.json

The folder has the templates. The arguments of calls are read from their text, as vLLM does before
it renders; all else is passed on as it is. A text is null where the template refuses.
"""

import copy
import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

TEMPLATES = ["qwen2_tools", "qwen3_thinking", "llama3_tools", "mistral_tools", "hermes_tools",
             "command_r_tools", "granite_documents"]


def function(name, description=None, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    described = {"name": name} | ({"description": description} if description else {})
    return {"type": "function", "function": described | {"parameters": parameters}}


WEATHER = function("get_weather", 'The "current" weather <in> a city & more',
                   city={"type": "string", "description": "Köln, München"},
                   unit={"type": "string", "enum": ["°C", "°F"], "default": "°C"})
ADD = function("add", "Adds\ntwo numbers", a={"type": "number", "minimum": -1.5},
               b={"type": ["number", "null"], "default": None})
NOTE = function("note", tags={"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3})
TOOLS = [WEATHER, ADD, NOTE]


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def calls(*made, content=None, **others):
    made = [
        {"id": f"{name[0]}bcdefgh{at}", "type": "function",
         "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(made)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made} | others


def result(text, identifier, **others):
    return {"role": "tool", "tool_call_id": identifier, "content": text} | others


WARM = calls(("get_weather", '{"city": "Köln", "unit": "°C"}'))
SUM = calls(("add", '{"b": 2.0, "a": -1e3}'))
CONVERSATIONS = [
    {"messages": [user("Hi.")], "tools": TOOLS},
    {"messages": [system("Be brief."), user("Weather?")], "tools": [WEATHER]},
    {"messages": [user("Weather?"), WARM, result('{"t": 21.5}', "gbcdefgh0")], "tools": TOOLS},
    {"messages": [system(" Be brief. "), user("Sum?"), SUM, result("-998", "abcdefgh0"),
                  {"role": "assistant", "content": "It is -998."}, user("And more?")],
     "tools": [ADD]},
    {"messages": [user("Both?"), calls(("get_weather", '{"city": "A"}'), ("add", '{"a": 1}')),
                  result("warm", "gbcdefgh0"), result("1", "abcdefgh1")], "tools": TOOLS},
    {"messages": [user("None?"), calls(("note", "")), result("", "nbcdefgh0")], "tools": [NOTE]},
    {"messages": [user("Both?"), calls(("add", '{"a": 1}'), content="Let me see."),
                  result("1", "abcdefgh0")], "tools": TOOLS},
    {"messages": [user("Both?"), calls(("add", '{"a": 1}'), content=""),
                  result("1", "abcdefgh0")], "tools": TOOLS},
    {"messages": [user("Think?"), calls(("add", '{"a": 1}'), reasoning_content="Hm.\n"),
                  result("1", "abcdefgh0")], "tools": TOOLS},
    {"messages": [user("Think?"), {"role": "assistant", "reasoning_content": "So", "content": "4"},
                  user("Why?")]},
    {"messages": [user("Think?")], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [user("Think?")], "chat_template_kwargs": {"enable_thinking": True}},
    {"messages": [user("Weather?")], "tools": TOOLS,
     "chat_template_kwargs": {"tools_in_user_message": False, "date_string": "1 May 2026"}},
    {"messages": [user("Weather?"), WARM, result("7", "gbcdefgh0", name="get_weather"), SUM,
                  result("8", "abcdefgh0")], "tools": TOOLS},
    {"messages": [user("Weather?"), calls(("note", '{"tags": [{"k": {"x": [1, null, true]}}]}')),
                  result("ok", "nbcdefgh0")], "tools": [NOTE]},
    {"messages": [user("Weather?"), WARM, result("7", "short")], "tools": [WEATHER]},
    {"messages": [user("Read."), {"role": "assistant", "content": "Yes."}, user("So?")],
     "documents": [{"title": "One", "text": "A <b> text."}, {"title": "Two", "text": "Ü"}]},
    {"messages": [user("Read.")], "documents": [{"doc_id": 1, "title": "One", "text": "A"}],
     "tools": [ADD]},
    {"messages": [user("Weather?"), WARM, result("7", "gbcdefgh0"),
                  {"role": "assistant", "content": "7 degrees"}], "tools": [WEATHER],
     "add_generation_prompt": False},
    {"messages": [user("😀?"), calls(("get_weather", '{"city":"😀 \\"q\\" \\\\ \\u00e9"}')),
                  result("a\tb\r\nc", "gbcdefgh0")], "tools": [WEATHER]},
]


def read(messages):
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = json.loads(arguments) if arguments else {}
    return messages


def render(source, chat):
    try:
        return _compile_jinja_template(source).render(
            messages=read(chat["messages"]),
            tools=chat.get("tools"),
            documents=chat.get("documents"),
            add_generation_prompt=chat.get("add_generation_prompt", True),
            bos_token="<s>",
            eos_token="</s>",
            **chat.get("chat_template_kwargs", {}),
        )
    except Exception as error:
        print(f"refused: {error!r}"[:100])
        return None


def main(folder, out):
    sources = {name: (folder / f"{name}.jinja").read_text("utf-8") for name in TEMPLATES}
    texts = {name: [render(source, chat) for chat in CONVERSATIONS]
             for name, source in sources.items()}
    recorded = {"chats": CONVERSATIONS, "texts": texts}
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
