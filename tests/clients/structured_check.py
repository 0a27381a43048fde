#!/usr/bin/env python3
"""Answers of a given form: schemas of realistic shape, expressions, choices, grammars.

usage: structured_check.py URL [--schemas N] [--max-tokens N] [--at-once N]

Asks the server at URL for an answer to each of N schemas made here (seeded: the same ones each
time), at temperature 1, and checks with the package jsonschema that every complete answer parses
and validates; the others were cut by max_tokens. Exit code 1 if one does not.
"""

import argparse
import concurrent.futures
import json
import random
import re
import sys
import urllib.error
import urllib.request

import jsonschema

WORDS = ["name", "id", "title", "price", "tags", "address", "city", "email", "created", "status",
         "items", "total", "note", "count", "owner", "parent", "kind", "value", "unit", "active"]
FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "hostname"]
PATTERNS = ["^[A-Z]{2}-[0-9]{3}$", "^[a-z]{1,8}$", "^(red|green|blue)$", "^\\+[0-9]{6,12}$"]


class Maker:
    """Makes schemas of one seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.definitions = {}

    def schema(self):
        root = self.object(3)
        if self.rng.random() < 0.3:
            # A recursive definition: a tree of named nodes.
            self.definitions["node"] = {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 8},
                               "children": {"type": "array", "maxItems": 2,
                                            "items": {"$ref": "#/$defs/node"}}},
                "required": ["name", "children"], "additionalProperties": False}
            root["properties"]["tree"] = {"$ref": "#/$defs/node"}
            root["required"].append("tree")
        if self.definitions:
            root["$defs"] = self.definitions
        return root

    def object(self, depth):
        names = self.rng.sample(WORDS, self.rng.randint(1, 4))
        required = [name for name in names if self.rng.random() < 0.7]
        made = {"type": "object", "properties": {name: self.value(depth - 1) for name in names},
                "required": required}
        if self.rng.random() < 0.8:
            made["additionalProperties"] = False
        return made

    def value(self, depth):
        leaves = [self.text, self.number, self.whole, self.enumeration, self.constant, self.flag,
                  self.nullable, self.shared]
        inner = [self.object, self.array, self.union] if depth > 0 else []
        pick = self.rng.choice(leaves + inner * 2)
        return pick(depth) if pick in inner else pick()

    def text(self):
        made = {"type": "string"}
        form = self.rng.random()
        if form < 0.3:
            made["format"] = self.rng.choice(FORMATS)
        elif form < 0.55:
            made["pattern"] = self.rng.choice(PATTERNS)
        else:
            made["minLength"] = self.rng.randint(0, 3)
            made["maxLength"] = made["minLength"] + self.rng.randint(1, 12)
        return made

    def number(self):
        low = self.rng.randint(-100, 100)
        return {"type": "number", "minimum": low, "maximum": low + self.rng.randint(1, 500)}

    def whole(self):
        made = {"type": "integer", "minimum": self.rng.randint(-5, 10)}
        made["maximum"] = made["minimum"] + self.rng.randint(0, 1000)
        return made

    def enumeration(self):
        return {"enum": self.rng.sample(["low", "high", 3, None, True, "mid", 2.5], 3)}

    def constant(self):
        return {"const": self.rng.choice(["fixed", 42, {"a": [1, "b"]}])}

    def flag(self):
        return {"type": "boolean"}

    def nullable(self):
        return {"type": ["integer", "null"], "minimum": 0, "maximum": 9}

    def shared(self):
        self.definitions.setdefault("money", {
            "type": "object", "required": ["amount", "currency"], "additionalProperties": False,
            "properties": {"amount": {"type": "integer", "minimum": 0, "maximum": 99999},
                           "currency": {"enum": ["EUR", "USD", "CHF"]}}})
        return {"$ref": "#/$defs/money"}

    def array(self, depth):
        low = self.rng.randint(0, 2)
        return {"type": "array", "items": self.value(depth - 1), "minItems": low,
                "maxItems": low + self.rng.randint(0, 2)}

    def union(self, depth):
        return {"anyOf": [self.value(depth - 1), self.whole(), {"type": "null"}]}


def other_forms(rng):
    """Fields of a form that is no schema, with the check of its answers."""
    code = "[A-Z]{3}-[0-9]{2,4}(/[a-f]+)?"
    choices = rng.sample(WORDS, 4) + ["two words", "ende."]
    grammar = 'root ::= item ("," " " item)*\nitem ::= word "=" [0-9]{1,3}\nword ::= [a-z]{1,6}\n'
    lark = 'start: pair (";" pair)*\npair: /[a-z]{1,4}/ ":" /[0-9]/\n'
    brackets = 'root ::= "[" (root ("," root)*)? "]"\n'
    item = "[a-z]{1,6}=[0-9]{1,3}"
    return rng.choice([
        ({"guided_regex": code}, re.compile(code).fullmatch),
        ({"guided_choice": choices}, choices.__contains__),
        ({"grammar": grammar}, re.compile(f"{item}(, {item})*").fullmatch),
        ({"guided_grammar": lark}, re.compile("[a-z]{1,4}:[0-9](;[a-z]{1,4}:[0-9])*").fullmatch),
        ({"grammar": brackets}, lambda text: json.loads(text) is not None),
    ])


def ask(url, fields, seed, max_tokens):
    body = {"messages": [{"role": "user", "content": "Give an example of a record."}],
            "temperature": 1, "seed": seed, "max_tokens": max_tokens, **fields}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            choice = json.load(answer)["choices"][0]
    except urllib.error.HTTPError as error:
        return None, f"{error.code}: {error.read().decode()[:400]}"
    return choice["message"]["content"], choice["finish_reason"]


def check(url, seed, max_tokens):
    """Returns the kind of the form, "complete", "cut" or what is wrong."""
    is_schema = seed % 6 != 5
    if is_schema:
        schema = Maker(seed).schema()
        named = {"name": "record", "schema": schema}
        fields = {"response_format": {"type": "json_schema", "json_schema": named}}
    else:
        fields, fits = other_forms(random.Random(seed))
    text, reason = ask(url, fields, seed, max_tokens)
    if text is None:
        return is_schema, f"seed {seed}: {reason}: {json.dumps(fields)[:600]}"
    if reason == "length":
        return is_schema, "cut"
    try:
        if is_schema:
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            value = json.loads(text)
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(value)
        elif not fits(text):
            return is_schema, f"seed {seed}: {text!r} does not fit {fields}"
    except (ValueError, jsonschema.ValidationError) as error:
        what = str(error).splitlines()[0]
        return is_schema, f"seed {seed}: {what}: {text[:300]!r} to {json.dumps(fields)[:600]}"
    return is_schema, "complete"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    count = options.schemas * 6 // 5
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        results = list(pool.map(
            lambda seed: check(options.url, seed, options.max_tokens), range(count)))
    wrong = [what for _, what in results if what not in ("complete", "cut")]
    for what in wrong[:20]:
        print(what)
    for kind, name in [(True, "schemas"), (False, "other forms")]:
        mine = [what for is_schema, what in results if is_schema == kind]
        print(f"{name}: {len(mine)} answers, {mine.count('complete')} complete and valid, "
              f"{mine.count('cut')} cut by length, "
              f"{len(mine) - mine.count('complete') - mine.count('cut')} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
