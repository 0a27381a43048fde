"""Open families, the answer deciding as it goes: dialogue, code, table, letter, diary."""
from words import (
    ADJS,
    ANIMALS,
    COLORS,
    FEELINGS,
    FOODS,
    LISTS,
    NAMES,
    PLACES,
    THINGS,
    WEATHER,
    an,
    plural,
    two,
    walk,
)
from lengths import hint_of, sized, units


def dialogue_prompt(rng):
    hint = hint_of(rng)
    a, b = two(rng, NAMES)
    topic = plural(rng.choice(ANIMALS + FOODS + THINGS))
    form = rng.choice(
        [
            "Write {} between {} and {} about {}.",
            "Make {} of {} and {} about {}.",
            "Let me read {} of {} and {} about {}.",
        ]
    )
    return form.format(sized(hint, "talk"), a, b, topic), {
        "hint": hint,
        "a": a,
        "b": b,
        "topic": topic,
    }


def dialogue_answer(rng, s, say):
    topic = s["topic"]
    n = units(rng, "dialogue", s["hint"], -0.1)
    if n == 0:
        say("A talk in 1 line.\n")
        say(f"{s['a']}: I have no time for {topic} now.")
        return
    say(f"A talk in {n} line{'s' if n > 1 else ''}.\n")
    for k in range(1, n + 1):
        who, other = (s["a"], s["b"]) if k % 2 else (s["b"], s["a"])
        text = rng.choice(
            [
                f"{other}, did you see the {rng.choice(COLORS)} {topic} near the {rng.choice(PLACES)}?",
                f"I think {topic} are {rng.choice(ADJS)} and {rng.choice(ADJS)}, {other}.",
                f"No, {other}, I like {rng.choice(COLORS)} {topic} more than {rng.choice(FOODS)}.",
                f"My friend {rng.choice(NAMES)} has {rng.randint(2, 12)} {topic} in the {rng.choice(PLACES)}.",
                f"Yes, {other}, and {rng.choice(NAMES)} likes {topic} too on {rng.choice(WEATHER)} days.",
            ]
        )
        say(f"{k} of {n}. {who}: {text}" + ("\n" if k < n else ""))


def code_prompt(rng):
    hint = hint_of(rng)
    s = {
        "hint": hint,
        "thing": rng.choice(THINGS),
        "verb": rng.choice(["count", "move", "sort", "find", "mark", "check"]),
    }
    form = rng.choice(["Write {} to {} {}.", "Make {} that can {} {}.", "I need {} to {} {}."])
    return form.format(sized(hint, "program"), s["verb"], plural(s["thing"])), s


def code_answer(rng, s, say):
    t = plural(s["thing"])
    n = units(rng, "code", s["hint"], 0.1)
    if n == 0:
        say("# one line\n")
        say(f"{s['verb']} = {rng.randint(2, 99)} + {rng.randint(2, 99)}")
        return
    say(f"# program with {n} part{'s' if n > 1 else ''}: {s['verb']} {t}\n")
    say(f"{t} = {rng.randint(2, 99)}\n")
    for k in range(1, n + 1):
        v = rng.choice("abcdefghkmnpqrstuvwxyz")
        f = rng.choice(["add", "get", "set", "put", "cut", "make", "take", "show"])
        body = rng.choice(
            [
                f"    {v} = {v} + {rng.randint(1, 30)}\n    return {v} + {t}\n",
                f"    if {v} > {rng.randint(1, 30)}:\n        return {t}\n    return {v}\n",
                f"    {v} = {t} - {rng.randint(1, 30)}\n    return {v}\n",
                f"    for i in range({rng.randint(2, 30)}):\n        {v} = {v} + i\n    return {v}\n",
            ]
        )
        say(f"# part {k} of {n}\ndef {f}_{rng.choice(COLORS)}_{s['thing']}({v}):\n{body}")
    say("# end")


def table_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "x": rng.choice(["animal", "food", "thing", "place"])}
    who = rng.choice(NAMES)
    s["who"] = who
    form = rng.choice(
        [
            "Make {} of each {} that {} has seen.",
            "Write {} of each {} known to {}.",
            "Show {} of each {} for {}.",
        ]
    )
    return form.format(sized(hint, "table"), s["x"], who), s


def table_answer(rng, s, say):
    words = LISTS[s["x"] + "s"]
    n = max(2, units(rng, "table", s["hint"], 0.0, low=2, high=len(words) - 3))
    say(f"A table for {s['who']} with {n} rows.\n")
    say(f"| row | {s['x']} | color | size | friend | day | place |\n")
    for k, w in enumerate(walk(rng, words, n), 1):
        say(
            f"| {k} of {n} | {w} | {rng.choice(COLORS)} | {rng.randint(1, 99)} | {rng.choice(NAMES)} | {rng.choice(WEATHER)} | {rng.choice(PLACES)} |\n"
        )
    say("End of table.")


def letter_prompt(rng):
    hint = hint_of(rng)
    a, b = two(rng, NAMES)
    topic = rng.choice(PLACES)
    form = rng.choice(
        [
            "Write {} from {} to {} about the {}.",
            "Help me: {} from {} to {} about the {}.",
            "I need {} from {} to {} about the {}.",
        ]
    )
    return form.format(sized(hint, "letter"), a, b, topic), {
        "hint": hint,
        "a": a,
        "b": b,
        "topic": topic,
    }


def letter_answer(rng, s, say):
    say(f"Dear {s['b']},\n")
    n = units(rng, "letter", s["hint"], 0.0)
    if n == 0:
        say(f"This is only a short note. The {s['topic']} is {rng.choice(ADJS)}.\n")
        say(f"Yours, {s['a']}")
        return
    say(f"I have {n} thing{'s' if n > 1 else ''} to tell you about the {s['topic']}.\n")
    for k in range(1, n + 1):
        f, th = rng.choice(NAMES), rng.choice(THINGS)
        one = rng.choice(
            [
                f"I met {f} at the {s['topic']} and we found a {rng.choice(COLORS)} {th}.",
                f"{f} lost a {rng.choice(COLORS)} {th} near the {s['topic']}.",
                f"there is a new {rng.choice(COLORS)} {th} at the {s['topic']}, and {f} likes it.",
            ]
        )
        two_ = rng.choice([f"It was {rng.choice(WEATHER)} and we ate {rng.choice(FOODS)}.",
                           f"{f} said hello to you and felt {rng.choice(FEELINGS)}.",
                           f"Now {f} and I look for {an(rng.choice(ANIMALS))} there."])
        say(f"Thing {k} of {n}: {one} {two_}\n")
    say(f"Yours, {s['a']}")


def diary_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "place": rng.choice(PLACES), "friend": rng.choice(NAMES)}
    form = rng.choice(
        [
            "Write {} of a trip to the {} with {}.",
            "Make {} of my trip to the {} with {}.",
            "I went to the {p} with {f}. Write {h}.",
        ]
    )
    text = sized(hint, "diary")
    if "{p}" in form:
        return form.format(p=s["place"], f=s["friend"], h=text), s
    return form.format(text, s["place"], s["friend"]), s


def diary_answer(rng, s, say):
    f, p = s["friend"], s["place"]
    say(f"My trip to the {p}\n")
    n = units(rng, "diary", s["hint"], 0.15)
    if n == 0:
        say(f"It was too {rng.choice(WEATHER)}, so {f} and I went home. ")
        say("No more days.")
        return
    say(f"We were away for {n} day{'s' if n > 1 else ''}.\n")
    for k in range(1, n + 1):
        one = rng.choice(
            [
                f"{f} and I walked around the {p} and saw {rng.randint(2, 12)} {plural(rng.choice(ANIMALS))}.",
                f"we sat near the {p} and {f} drew {an(rng.choice(ANIMALS))} on a {rng.choice(THINGS)}.",
                f"{f} found a {rng.choice(COLORS)} {rng.choice(THINGS)} at the {p}.",
            ]
        )
        two_ = rng.choice(
            [
                f"We ate {rng.choice(FOODS)} and {rng.choice(FOODS)}.",
                f"I felt {rng.choice(FEELINGS)} and {f} felt {rng.choice(FEELINGS)}.",
                f"At night {rng.choice(NAMES)} came to us.",
            ]
        )
        left = n - k
        say(f"Day {k} of {n}: It was {rng.choice(WEATHER)}. {one} {two_} {left} to go.\n")
    say("Then we went home.")
