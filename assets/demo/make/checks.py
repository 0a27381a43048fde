"""One checker per family: does an answer do what its prompt asks, in the form its family has?

`check(family, slots, text, ended)` returns None if all is well, else a short reason. An answer cut
by max_tokens is judged on its whole lines (or items); an answer that ended must be complete. The
criteria are in assets/demo/make/README.md.
"""
import ast
import re

import corpus as C
import words

ALL_WORDS = {k: set(v) for k, v in words.LISTS.items()}


def whole_lines(text, ended):
    lines = text.split("\n")
    return lines if ended else lines[:-1]


def exact(want):
    def run(s, text, ended):
        w = want(s)
        if ended:
            return None if text in (w if isinstance(w, list) else [w]) else "not the expected text"
        return (
            None
            if any(x.startswith(text) for x in (w if isinstance(w, list) else [w]))
            else "wrong so far"
        )
    return run


def render(fam, s):
    return "".join(C.answer_segments(fam, s, 0))


def qa(s, text, ended):
    if not ended:
        return "did not end"
    long = "Let us see. "
    if s["kind"] == "color":
        long += f"{s['a']} has the {s['c']} {s['thing']} and {s['b']} has the {s['d']} {s['thing']}. So: "
    else:
        long += f"{s['a']} has {s['m']} and {s['b']} has {s['n']}. So: "
    return None if text in (s["ans"], long + s["ans"]) else "wrong answer"


def numbered(lines, n, pattern, ended, first=1):
    """Unit lines must carry k = 1, 2, ... n in order; returns (reason, list of matches)."""
    found = []
    for line in lines:
        m = re.fullmatch(pattern, line)
        if not m:
            return f"unit line has another form: {line[:60]!r}", found
        if int(m.group("k")) != len(found) + first:
            return f"unit {m.group('k')} where {len(found) + first} belongs", found
        if "n" in m.groupdict() and int(m.group("n")) != n:
            return f"says {m.group('n')} of {n}", found
        found.append(m)
    if len(found) > n or (ended and len(found) != n):
        return f"{len(found)} units, {n} announced", found
    return None, found


def opened(head, body, tail, tiny=None):
    """A checker for: header line(s) with (?P<n>), unit lines, closing line; or the very short
    form."""
    def run(s, text, ended):
        g = {k: re.escape(str(v)) for k, v in s.items()}
        if tiny and ended and re.fullmatch(tiny(g), text):
            return None
        m = re.match(head(g), text)
        if not m:
            return "header"
        n = int(m.group("n"))
        if n < 1:
            return "announces nothing"
        rest = text[m.end():]
        if ended:
            t = tail(g)
            if t:
                if not re.search(r"(^|\n)" + t + r"\Z", rest):
                    return "closing line"
                rest = re.sub(r"(^|\n)" + t + r"\Z", "", rest)
            lines = rest.split("\n")
        else:
            lines = rest.split("\n")[:-1]
        pattern, more = body(g, m)
        bad, found = numbered(lines, n, pattern, ended)
        return bad or (more(s, n, found) if more else None)
    return run



def story_more(s, n, found):
    for m in found:
        if s["name"] not in m.group("t"):
            return f"chapter {m.group('k')} forgets {s['name']}"
        if m.group("t").count(".") != 3:
            return f"chapter {m.group('k')} has not three sentences"
        obj = re.search(r"(?:a|an) (?:%s) (\w+)" % "|".join(words.COLORS), m.group("t"))
        if not obj or m.group("t").count(obj.group(1)) < 2:
            return f"chapter {m.group('k')} drops its object"
    return None


def words_more(kind_of):
    def run(s, n, found):
        ws = [m.group("w") for m in found]
        if len(set(ws)) != len(ws):
            return "an item twice"
        bad = [w for w in ws if w not in ALL_WORDS[kind_of(s)]]
        return f"{bad[0]} does not belong" if bad else None
    return run


def list_check(s, text, ended):
    kind = s["kind"]
    words = ALL_WORDS[kind]
    m = re.match(rf"Here are some {kind}\.\n", text)
    if m:
        lines = text[m.end():].split("\n")
        if not ended:
            return "open list without end"
        items = [re.fullmatch(r"- (\w+)", x) for x in lines[:-1]]
        last = re.fullmatch(r"Finally, (\w+)\.", lines[-1])
        if not last or not all(items):
            return "form of an item"
        ws = [x.group(1) for x in items] + [last.group(1)]
        return None if set(ws) <= words and len(set(ws)) == len(ws) else "an item twice or foreign"
    m = re.match(rf"Here are (?P<n>\d+) {kind}(?P<notes> with notes)?\.\n", text)
    if not m:
        return "header"
    n = int(m.group("n"))
    lines = whole_lines(text[m.end():], ended)
    pat = (
        rf"(?P<k>\d+) of (?P<n>\d+)\. (?P<w>\w+): .*\b{s['who']}\b.*\."
        if m.group("notes")
        else r"(?P<k>\d+)\. (?P<w>\w+)"
    )
    bad, found = numbered(lines, n, pat, ended)
    return bad or words_more(lambda s: s["kind"])(s, n, found)


def plan_check(s, text, ended):
    name = s["name"]
    if ended and re.fullmatch(
        rf"A free day for {name}\.\n{name} rests in the \w+ and has time for {s['hobby']}\.", text
    ):
        return None
    m = re.match(rf"A plan for {name} with (\d+) hours?, from (\d+):00 to (\d+):00\.\n", text)
    if not m:
        return "header"
    n, a, b = (int(x) for x in m.groups())
    if b - a != n:
        return "hours do not add up"
    rest = text[m.end():]
    if ended:
        if not rest.endswith("\nGood night."):
            return "closing line"
        lines = rest[:-len("\nGood night.")].split("\n")
    else:
        lines = rest.split("\n")[:-1]
    if len(lines) > n or (ended and len(lines) != n):
        return "number of hours"
    for i, line in enumerate(lines):
        u = re.fullmatch(r"(\d+):00 (.*) \((\d+) left\)", line)
        if not u or int(u.group(1)) != a + i or int(u.group(3)) != n - i - 1:
            return "an hour or its countdown is wrong"
        if name not in u.group(2):
            return f"forgets {name}"
    return None


def dialogue_more(s, n, found):
    for i, m in enumerate(found):
        if m.group("who") != (s["a"] if i % 2 == 0 else s["b"]):
            return "the wrong one speaks"
    on = sum(s["topic"] in m.group("t") for m in found)
    return None if on >= 0.9 * len(found) else "loses the topic"


def code_check(s, text, ended):
    if ended and re.fullmatch(rf"# one line\n{s['verb']} = \d+ \+ \d+", text):
        return None
    t = words.plural(s["thing"])
    m = re.match(rf"# program with (\d+) parts?: {s['verb']} {t}\n{t} = \d+\n", text)
    if not m:
        return "header"
    n = int(m.group(1))
    parts = re.findall(r"# part (\d+) of (\d+)\n", text)
    if [int(k) for k, _ in parts] != list(range(1, len(parts) + 1)) or any(
        int(x) != n for _, x in parts
    ):
        return "numbering of the parts"
    if ended:
        if not text.endswith("# end") or len(parts) != n:
            return "number of parts"
        src = text
    else:
        if len(parts) > n:
            return "number of parts"
        src = text[:text.rfind("# part")]
    try:
        tree = ast.parse(src)
    except SyntaxError:
        return "not valid Python"
    for f in [x for x in tree.body if isinstance(x, ast.FunctionDef)]:
        names = {x.id for x in ast.walk(f) if isinstance(x, ast.Name)}
        if not names <= {f.args.args[0].arg, t, "range", "i"}:
            return "an undefined name"
    return None


def explain_head(g):
    return rf"{g['who'].capitalize()} like {g['topic']} because they are \w+\. There (?:are|is) (?P<n>\d+) reasons?\.\n"


CHECKS = {
    "spell": exact(lambda s: render("spell", s)),
    "arith": exact(lambda s: render("arith", s)),
    "qa": qa,
    "sort": exact(lambda s: render("sort", s)),
    "count": exact(lambda s: render("count", s)),
    "repeat": exact(lambda s: render("repeat", s)),
    "times": exact(lambda s: render("times", s)),
    "story": opened(
        lambda g: rf"The {g['adj'].capitalize()} {g['animal'].capitalize()}\nA story in (?P<n>\d+) chapters?, with {g['name']} and \w+\.\n",
        lambda g, m: (r"Chapter (?P<k>\d+) of (?P<n>\d+)\. (?P<t>.*\.)", story_more),
        lambda g: r"The end\.",
        lambda g: rf"The {g['adj'].capitalize()} {g['animal'].capitalize()}\nA very short story\.\n{g['name']} the {g['animal']} found an? \w+ in the \w+ and was \w+\. The end\.",
    ),
    "list": list_check,
    "explain": opened(
        explain_head,
        lambda g, m: (
            rf"Reason (?P<k>\d+) of (?P<n>\d+): .*{g['topic'][1:]}.*\. For example, .*{g['topic']}.*\.",
            None,
        ),
        lambda g: rf"So {g['who']} like {g['topic']}\.",
        lambda g: rf"{g['who'].capitalize()} like {g['topic']} because they are \w+\. That is all\.",
    ),
    "recipe": opened(
        lambda g: rf"For {g['food']} {g['dish']} you need {g['food']}, (?P<a>\w+) and (?P<b>\w+)\. It takes (?P<n>\d+) steps?\.\n",
        lambda g, m: (
            rf"Step (?P<k>\d+) of (?P<n>\d+): [A-Z]\w+ the (?:{g['food']}|{m['a']}|{m['b']}) .*\d+.*\.",
            None,
        ),
        lambda g: rf"The {g['dish']} is ready\.",
        lambda g: rf"For {g['food']} {g['dish']} you need {g['food']}, \w+ and \w+\. Mix all of it and cook it\. Done\.",
    ),
    "plan": plan_check,
    "dialogue": opened(
        lambda g: r"A talk in (?P<n>\d+) lines?\.\n",
        lambda g, m: (r"(?P<k>\d+) of (?P<n>\d+)\. (?P<who>\w+): (?P<t>.*[.?])", dialogue_more),
        lambda g: "",
        lambda g: rf"A talk in 1 line\.\n{g['a']}: I have no time for {g['topic']} now\.",
    ),
    "code": code_check,
    "table": opened(
        lambda g: rf"A table for {g['who']} with (?P<n>\d+) rows\.\n\| row \| {g['x']} \| color \| size \| friend \| day \| place \|\n",
        lambda g, m: (
            r"\| (?P<k>\d+) of (?P<n>\d+) \| (?P<w>\w+) \| (?:%s) \| \d+ \| \w+ \| (?:%s) \| \w+ \|"
            % ("|".join(words.COLORS), "|".join(words.WEATHER)),
            words_more(lambda s: s["x"] + "s"),
        ),
        lambda g: r"End of table\.",
    ),
    "letter": opened(
        lambda g: rf"Dear {g['b']},\nI have (?P<n>\d+) things? to tell you about the {g['topic']}\.\n",
        lambda g, m: (r"Thing (?P<k>\d+) of (?P<n>\d+): .*\. .*\.", None),
        lambda g: rf"Yours, {g['a']}",
        lambda g: rf"Dear {g['b']},\nThis is only a short note\. The {g['topic']} is \w+\.\nYours, {g['a']}",
    ),
    "diary": opened(
        lambda g: rf"My trip to the {g['place']}\nWe were away for (?P<n>\d+) days?\.\n",
        lambda g, m: (
            rf"Day (?P<k>\d+) of (?P<n>\d+): It was \w+\. .*(?:{g['friend']}|{g['place']}).*\. (?P<left>\d+) to go\.",
            lambda s, n, f: next(
                (f"countdown in day {m['k']}" for m in f if int(m["left"]) != n - int(m["k"])), None
            ),
        ),
        lambda g: r"Then we went home\.",
        lambda g: rf"My trip to the {g['place']}\nIt was too \w+, so {g['friend']} and I went home\. No more days\.",
    ),
}


def check(family, slots, text, ended):
    return CHECKS[family](slots, text, ended)


def main():
    """The generator's own answers must all pass, whole and cut; the same with a segment missing
    must not."""
    import random
    rng = random.Random(3)
    bad = 0
    for i in range(6000):
        fam = list(C.FAMILIES)[i % len(C.FAMILIES)]
        _, prompt, slots = C.draw_prompt(rng, None, fam)
        segs = C.answer_segments(fam, slots, rng.getrandbits(48))
        text = "".join(segs)
        why = check(fam, slots, text, True)
        if not why and len(text) > 300 and not text.startswith("Here are some"):
            why = check(fam, slots, text[:rng.randint(280, len(text) - 1)], False)
        if (
            not why
            and (len(segs) > 4 or fam not in ("qa", "list"))
            and len(segs) > 2
            and not text.startswith("Here are some")
        ):
            k = rng.randrange(1, len(segs) - 1)
            if check(fam, slots, "".join(segs[:k] + segs[k + 1:]), True) is None:
                why = f"passes without segment {k}"
        if why:
            bad += 1
            print(fam, why, "|", prompt, "|", text[:200].replace("\n", "/"))
    print("wrong verdicts:", bad)
    return bad > 0


if __name__ == "__main__":
    raise SystemExit(main())
