"""Closed families: the prompt decides the length."""
from words import ANIMALS, COLORS, FOODS, NAMES, PLACES, THINGS, plural, two


def spell_prompt(rng):
    word = rng.choice(ANIMALS + FOODS + THINGS + PLACES)
    form = rng.choice(
        [
            "Spell the word {}.",
            "How do you spell {}?",
            "Spell {} for me.",
            "Please spell {}.",
            "What are the letters of {}?",
            "I want to spell {}. Help me.",
        ]
    )
    return form.format(word), {"word": word}


def spell_answer(rng, s, say):
    word = s["word"]
    say("The word is spelled " + " ".join(word) + ".")
    say(f" It has {len(word)} letters.")


def arith_prompt(rng):
    n = rng.choices([2, 3, 4, 5], [.45, .3, .15, .1])[0]
    total, terms = rng.randint(1, 20), []
    terms.append(total)
    for _ in range(n - 1):
        if total > 3 and rng.random() < 0.4:
            x = rng.randint(1, min(9, total - 1))
            terms.append(-x)
        else:
            x = rng.randint(1, 9)
            terms.append(x)
        total += terms[-1]
    text = str(terms[0]) + "".join(f" + {x}" if x > 0 else f" - {-x}" for x in terms[1:])
    form = rng.choice(
        ["What is {}?", "Compute {}.", "Work out {}.", "Please find {}.", "How much is {}?"]
    )
    return form.format(text), {"terms": terms}


def arith_answer(rng, s, say):
    total = s["terms"][0]
    for x in s["terms"][1:]:
        new = total + x
        say(f"{total} {'+' if x > 0 else '-'} {abs(x)} = {new}. ")
        total = new
    say(f"The answer is {total}.")


def qa_prompt(rng):
    a, b = two(rng, NAMES)
    c, d = two(rng, COLORS)
    thing = rng.choice(THINGS)
    food = plural(rng.choice(FOODS))
    m, n = rng.sample(range(2, 13), 2)
    who = rng.choice([a, b])
    kind = rng.choice(["color", "number", "more"])
    if kind == "color":
        text = f"{a} has a {c} {thing}. {b} has a {d} {thing}. What color is the {thing} of {who}?"
        ans = f"The {thing} of {who} is {c if who == a else d}."
    elif kind == "number":
        text = f"{a} has {m} {food}. {b} has {n} {food}. How many {food} does {who} have?"
        ans = f"{who} has {m if who == a else n} {food}."
    else:
        text = f"{a} has {m} {food}. {b} has {n} {food}. Who has more {food}?"
        ans = f"{a if m > n else b} has more {food}."
    return text, {
        "kind": kind,
        "a": a,
        "b": b,
        "m": m,
        "n": n,
        "c": c,
        "d": d,
        "thing": thing,
        "food": food,
        "ans": ans,
    }


def qa_answer(rng, s, say):
    if rng.random() < 0.3:
        say("Let us see. ")
        if s["kind"] == "color":
            say(
                f"{s['a']} has the {s['c']} {s['thing']} and {s['b']} has the {s['d']} {s['thing']}. So: "
            )
        else:
            say(f"{s['a']} has {s['m']} and {s['b']} has {s['n']}. So: ")
    say(s["ans"])


def sort_prompt(rng):
    words = rng.sample(
        rng.choice([ANIMALS, FOODS, THINGS, NAMES]),
        rng.choices([3, 4, 5, 6, 7, 8], [3, 4, 4, 3, 2, 1])[0],
    )
    form = rng.choice(
        [
            "Sort these words: {}.",
            "Put these words in order: {}.",
            "Write in order of the letters: {}.",
        ]
    )
    return form.format(", ".join(words)), {"words": words}


def sort_answer(rng, s, say):
    say("In order: ")
    words = sorted(s["words"])
    for i, w in enumerate(words):
        say(w + (", " if i + 1 < len(words) else "."))


def count_prompt(rng):
    step = rng.choices([1, 2, 5, 10], [.7, .15, .1, .05])[0]
    n = min(rng.randint(12, 95), 98 // step)
    low = (
        rng.randint(0, (99 - step * (n - 1)) // step) * step
        if step > 1
        else rng.randint(0, 99 - (n - 1))
    )
    seq = [low + step * i for i in range(n)]
    down = rng.random() < 0.35
    if down:
        seq.reverse()
    by = f" in steps of {step}" if step > 1 else ""
    form = rng.choice(["Count {d} from {a} to {b}{by}.", "Please count {d} from {a} to {b}{by}.",
                       "Start at {a} and count {d} to {b}{by}."])
    return form.format(d="down" if down else "up", a=seq[0], b=seq[-1], by=by), {"seq": seq}


def count_answer(rng, s, say):
    seq = s["seq"]
    for i, x in enumerate(seq):
        say(f"{x}" + (", " if i + 1 < len(seq) else "."))


def repeat_prompt(rng):
    if rng.random() < 0.5:
        text = rng.choice(ANIMALS + FOODS + THINGS + PLACES)
        n = rng.randint(6, 45)
        form = rng.choice(
            [
                "Say the word {} {} times.",
                "Write the word {} {} times.",
                "Repeat the word {} {} times.",
            ]
        )
    else:
        text = f"{rng.choice(NAMES)} has a {rng.choice(COLORS)} {rng.choice(THINGS)}"
        n = rng.randint(4, 30)
        form = rng.choice(
            [
                "Write the line '{}' {} times.",
                "Repeat the line '{}' {} times.",
                "Copy the line '{}' {} times.",
            ]
        )
    return form.format(text, n), {"text": text, "n": n}


def repeat_answer(rng, s, say):
    for i in range(s["n"]):
        say(f"{i + 1}. {s['text']}" + ("\n" if i + 1 < s["n"] else ""))


def times_prompt(rng):
    a, n = rng.randint(2, 12), rng.randint(4, 24)
    if a * n > 200:
        n = 200 // a
    form = rng.choice(
        [
            "Write the times table of {} up to {}.",
            "Show the table of {} from 1 to {}.",
            "Multiply {} by each number up to {}.",
        ]
    )
    return form.format(a, n), {"a": a, "n": n}


def times_answer(rng, s, say):
    for i in range(1, s["n"] + 1):
        say(f"{s['a']} x {i} = {s['a'] * i}" + ("\n" if i < s["n"] else ""))
