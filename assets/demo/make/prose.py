"""Open families, the answer deciding as it goes: story, list, explain, recipe, plan."""
from words import (
    ADJS,
    ANIMALS,
    COLORS,
    FEELINGS,
    FOODS,
    HOBBIES,
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


def story_prompt(rng):
    hint = hint_of(rng)
    s = {
        "hint": hint,
        "name": rng.choice(NAMES),
        "adj": rng.choice(ADJS),
        "animal": rng.choice(ANIMALS),
    }
    form = rng.choice(
        [
            "Write {} about {} {} named {}.",
            "Tell me {} about {} {} called {}.",
            "I want {} about {} {} named {}.",
        ]
    )
    return form.format(sized(hint, "story"), an(s["adj"]), s["animal"], s["name"]), s


def story_lines(rng, name, friend):
    """Three sentences that hang together."""
    obj, place, other = rng.choice(THINGS), rng.choice(PLACES), rng.choice(PLACES)
    color, food = rng.choice(COLORS), rng.choice(FOODS)
    one = rng.choice([f"{name} walked to the {place} and found a {color} {obj}.",
                      f"At the {place}, {name} saw a {color} {obj} on the ground.",
                      f"One day {name} went to the {place} to look for a {color} {obj}.",
                      f"{friend} came to the {place} and gave {name} a {color} {obj}."])
    two_ = rng.choice([f"The {obj} was old, so {name} put it in a bag.",
                       f"{friend} liked the {obj} and asked where it came from.",
                       f"{name} showed the {obj} to {friend} with a smile.",
                       f"{name} and {friend} took the {obj} to the {other}."])
    three = rng.choice([f"Then they shared some {food} and went home.",
                        f"After that they ate some {food} and felt {rng.choice(FEELINGS)}.",
                        f"In the evening {name} felt {rng.choice(FEELINGS)} and slept well.",
                        f"It was {rng.choice(WEATHER)}, so they stayed and ate {food}."])
    return f"{one} {two_} {three}"


def story_answer(rng, s, say):
    name = s["name"]
    say(f"The {s['adj'].capitalize()} {s['animal'].capitalize()}\n")
    n = units(rng, "story", s["hint"], 0.15)
    if n == 0:
        say("A very short story.\n")
        say(
            f"{name} the {s['animal']} found {an(rng.choice(THINGS))} in the {rng.choice(PLACES)} and was {rng.choice(FEELINGS)}. The end."
        )
        return
    friend = rng.choice([x for x in NAMES if x != name])
    say(f"A story in {n} chapter{'s' if n > 1 else ''}, with {name} and {friend}.\n")
    for k in range(1, n + 1):
        say(f"Chapter {k} of {n}. {story_lines(rng, name, friend)}\n")
    say("The end.")


def list_prompt(rng):
    kind = rng.choice(list(LISTS))
    hint = hint_of(rng)
    who = rng.choice(NAMES)
    form = rng.choice(
        [
            "Give me {} of {} for {}.",
            "Write {} of {} for {}.",
            "Make {} of {} that {} may like.",
            "Show {} {} of {}.",
        ]
    )
    if form.startswith("Show"):
        return form.format(who, sized(hint, "list"), kind), {"kind": kind, "hint": hint, "who": who}
    return form.format(sized(hint, "list"), kind, who), {"kind": kind, "hint": hint, "who": who}


def list_note(rng, who):
    return rng.choice(
        [
            f"{who} saw it at the {rng.choice(PLACES)} near the {rng.choice(COLORS)} {rng.choice(THINGS)}.",
            f"it is {rng.choice(COLORS)} and {rng.choice(ADJS)}, and {who} likes it a lot.",
            f"{who} and {rng.choice(NAMES)} found it on a {rng.choice(WEATHER)} day.",
            f"at the {rng.choice(PLACES)} there is a {rng.choice(COLORS)} one for {who}.",
        ]
    )


def list_answer(rng, s, say):
    words, who = LISTS[s["kind"]], s["who"]
    style = rng.choices(
        ["plain", "open", "notes"], [0.10, 0.15, 0.75] if s["hint"] != "short" else [0.4, 0.3, 0.3]
    )[0]
    if style == "plain":
        n = rng.randint(3, 18)
        say(f"Here are {n} {s['kind']}.\n")
        for k, w in enumerate(walk(rng, words, n), 1):
            say(f"{k}. {w}" + ("\n" if k < n else ""))
    elif style == "open":
        say(f"Here are some {s['kind']}.\n")
        i, k = rng.randint(0, 3), 1
        while True:
            if k > 2 and (rng.random() < 0.16 or i >= len(words) - 4):
                say(f"Finally, {words[i]}.")
                return
            say(f"- {words[i]}\n")
            i += 1 + rng.choices([0, 1, 2], [6, 3, 1])[0]
            i, k = min(i, len(words) - 1), k + 1
    else:
        n = units(rng, "list", s["hint"], 0.3, low=2, high=len(words) - 4)
        n = max(2, n)
        say(f"Here are {n} {s['kind']} with notes.\n")
        for k, w in enumerate(walk(rng, words, n), 1):
            say(f"{k} of {n}. {w}: {list_note(rng, who)}" + ("\n" if k < n else ""))


def explain_prompt(rng):
    hint = hint_of(rng)
    topic = plural(rng.choice(ANIMALS + THINGS))
    who = rng.choice(["people", "children", "farmers", "teachers", "sailors"])
    if hint:
        form = f"Give me {sized(hint, 'answer')}. Why do {who} like {topic}?"
    else:
        form = rng.choice(
            [
                f"Why do {who} like {topic}?",
                f"Tell me why {who} like {topic}.",
                f"Explain why {who} care for {topic}.",
            ]
        )
    return form, {"hint": hint, "topic": topic, "who": who}


def explain_answer(rng, s, say):
    topic, who = s["topic"], s["who"]
    say(f"{who.capitalize()} like {topic} because they are {rng.choice(ADJS)}. ")
    n = units(rng, "explain", s["hint"], 0.0)
    if n == 0:
        say("That is all.")
        return
    say(f"There {'are' if n > 1 else 'is'} {n} reason{'s' if n > 1 else ''}.\n")
    for k in range(1, n + 1):
        x, y = two(rng, ADJS)
        one = rng.choice([f"At the {rng.choice(PLACES)}, {topic} look {x} and {y}.",
                          f"{topic.capitalize()} can be {x}, and some of them are {y}.",
                          f"Many {who} have seen {x} {topic} near a {rng.choice(PLACES)}."])
        nm = rng.choice(NAMES)
        ex = rng.choice(
            [
                f"For example, {nm} keeps {rng.randint(2, 12)} {topic} in a {rng.choice(COLORS)} {rng.choice(['box', 'house', 'room', 'garden'])}.",
                f"For example, {nm} drew {rng.choice(COLORS)} {topic} on a {rng.choice(THINGS)}.",
                f"For example, {nm} told us about {rng.randint(2, 12)} {topic} on a {rng.choice(WEATHER)} day.",
            ]
        )
        say(f"Reason {k} of {n}: {one} {ex}\n")
    say(f"So {who} like {topic}.")


def recipe_prompt(rng):
    hint = hint_of(rng)
    s = {
        "hint": hint,
        "food": rng.choice(FOODS),
        "dish": rng.choice(["soup", "cake", "salad", "pie", "tea", "bread", "stew"]),
    }
    form = rng.choice(
        [
            "How do I make {} {}?",
            "How can I cook {} {}?",
            "Show me how to make {} {}.",
            "Write {r} for {} {}.",
        ]
    )
    if hint:
        form = "Write {r} for {} {}."
    return form.format(s["food"], s["dish"], r=sized(hint, "recipe")), s


def recipe_answer(rng, s, say):
    food, dish = s["food"], s["dish"]
    a, b = rng.sample([f for f in FOODS if f != food], 2)
    say(f"For {food} {dish} you need {food}, {a} and {b}. ")
    n = units(rng, "recipe", s["hint"], 0.0)
    if n == 0:
        say("Mix all of it and cook it. Done.")
        return
    say(f"It takes {n} step{'s' if n > 1 else ''}.\n")
    for k in range(1, n + 1):
        x = rng.choice([food, a, b])
        verb = rng.choice(["Wash", "Cut", "Mix", "Boil", "Bake", "Cool", "Press", "Heat"])
        tail = rng.choice(
            [
                f"for {rng.randint(2, 30)} minutes and put it in a {rng.choice(['pot', 'jar', 'cup', 'plate', 'box'])}.",
                f"with some {rng.choice([y for y in (food, a, b, 'water', 'salt') if y != x])}, then wait {rng.randint(2, 30)} minutes.",
                f"until it is {rng.choice(['soft', 'warm', 'cold', 'brown', 'dry'])}, then stir it {rng.randint(2, 30)} times.",
            ]
        )
        say(f"Step {k} of {n}: {verb} the {x} {tail}\n")
    say(f"The {dish} is ready.")


def plan_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "name": rng.choice(NAMES), "hobby": rng.choice(HOBBIES)}
    form = rng.choice(
        ["Make {} for {}, who likes {}.", "Write {} for {}, who likes {}.", "{} likes {}. Make {}."]
    )
    text = sized(hint, "day plan")
    if form.startswith("{} likes"):
        return form.format(s["name"], s["hobby"], text), s
    return form.format(text, s["name"], s["hobby"]), s


def plan_answer(rng, s, say):
    name = s["name"]
    n = units(rng, "plan", s["hint"], 0.0, high=18)
    if n == 0:
        say(f"A free day for {name}.\n")
        say(f"{name} rests in the {rng.choice(PLACES)} and has time for {s['hobby']}.")
        return
    start = rng.randint(5, min(10, 23 - n) if n < 18 else 5)
    say(
        f"A plan for {name} with {n} hour{'s' if n > 1 else ''}, from {start}:00 to {start + n}:00.\n"
    )
    for k in range(1, n + 1):
        p, f = rng.choice(PLACES), rng.choice(NAMES)
        act = rng.choice(
            [
                f"{name} goes to the {p} with {f} for {s['hobby']}.",
                f"{name} meets {f} in the {p} and they talk of {s['hobby']}.",
                f"{name} takes the {rng.choice(COLORS)} {rng.choice(THINGS)} to {f} in the {p}.",
            ]
        )
        then = rng.choice(
            [
                f"Then {name} eats some {rng.choice(FOODS)}.",
                f"Then {name} writes to {rng.choice(NAMES)}.",
                f"Then {name} looks at a {rng.choice(COLORS)} {rng.choice(THINGS)}.",
            ]
        )
        left = n - k
        say(f"{start + k - 1}:00 {act} {then} It is {rng.choice(WEATHER)}. ({left} left)\n")
    say("Good night.")
