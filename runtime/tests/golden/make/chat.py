"""Writes the golden chats: conversations as transformers' template engine renders them.

    python chat.py ../../text/chat.json

Each entry: template, bos_token, eos_token, messages, add_generation_prompt, and either text or
error, the message that the template raised.
"""

import json
import sys
from pathlib import Path

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

# Written after the manner of the models named, with the constructs that theirs use.
TEMPLATES = {
    "demo": """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}\
{{ '<|user|>' + message['content'] + '<|end|>' }}{% elif message['role'] == 'assistant' %}\
{{ '<|assistant|>' + message['content'] + eos_token }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}""",
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'\
 + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}\
{% endfor %}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""",
    "llama3.1": """{{- bos_token }}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- The system message comes first, if there is one. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- tools | tojson(indent=4) }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "llama2": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}\
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}\
{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate user and assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "vicuna": """{% for message in messages %}
{% if message.role == 'system' %}
{{ message.content }}
{% elif message.role == 'user' %}
USER: {{ message.content.strip() }}
{% else %}
ASSISTANT: {{ message.content.strip() }}{{ eos_token }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
ASSISTANT:{% endif %}
""",
    "methods": """{% for message in messages %}
    {% if message.content.startswith('skip') %}{% continue %}{% endif %}
    {% for key, value in message.items() %}
{{ key.upper() }}={{ value.split(' ')[0] }}|{{ value | tojson }};
    {% endfor %}
{% endfor %}
{% macro tag(name) %}<{{ name }}>{% endmacro %}
{{ tag('end') }}{{ messages | length }} {{ messages[-1].role is string }} {{ 'a, b'.split(', ') | join('+') }}
""",
}
CONVERSATIONS = [
    [("user", "Hello & <welcome>!")],
    [("system", "Be brief. "), ("user", " What is 2+2?\n"), ("assistant", " 4 "), ("user", "Why?")],
    [("user", "skip this"), ("user", "Émile said “no”")],
]


def case(template, turns, add_generation_prompt):
    given = {
        "template": template,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "messages": [{"role": role, "content": content} for role, content in turns],
        "add_generation_prompt": add_generation_prompt,
    }
    try:
        rendered, _ = render_jinja_template(
            conversations=[given["messages"]],
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            bos_token="<s>",
            eos_token="</s>",
        )
        return given | {"text": rendered[0]}
    except TemplateError as error:
        return given | {"error": error.message}


def main(out):
    cases = [
        {"name": name} | case(template, turns, prompt)
        for name, template in TEMPLATES.items()
        for turns in CONVERSATIONS
        for prompt in (False, True)
    ]
    out.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
