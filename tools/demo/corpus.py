"""A seeded generator of small instruction/answer pairs whose answer lengths are understood.

Every family has a `prompt(rng)` that returns (prompt text, slots) and an `answer(rng, slots, say)` that calls
`say(text)` once per segment. Rule of the house: a random number that decides the length is drawn in the very segment
that makes it readable in the text. So the answers that could still follow a given beginning are obtained by
replaying the same draws up to that segment and drawing afresh from there (`continuations`), and the Bayes figures
printed by `bayes.py` need no model.

Standard library only. `python corpus.py sample [family]` prints examples.
"""
import hashlib
import random
import sys

MAX_TOKENS = 512          # answers are cut here when served
CUT = MAX_TOKENS + 16     # and here when trained on (no end mark then)

# ---------------------------------------------------------------- vocabulary
NAMES = """Tom Ann Ben Mia Leo Eva Sam Zoe Max Ida Jon Amy Dan Kim Lea Rob Sue Ted Uma Vic Ada Bob Cora Dora Emil Fay
Gus Hana Ivan Jane Kurt Lily Mark Nora Otto Paul Rosa Sara Tina Will""".split()
ANIMALS = """ant bat bear bee bird cat cow crab deer dog duck eagle fish fox frog goat goose hare hen horse lamb lion
mole mouse owl panda pig rabbit seal sheep snail swan tiger turtle whale wolf""".split()
FOODS = """apple banana bean beet bread butter cabbage cake carrot cheese cherry corn cream egg fig garlic grape honey
lemon mango melon milk mint nut onion orange pea peach pear pepper plum potato rice salt sugar tomato""".split()
THINGS = """bag ball basket bell bench blanket boat book bottle box brush bucket button candle chair clock coat coin
comb cup desk drum flag flute hammer hat jar kettle key kite ladder lamp lantern map mirror needle paper pen pillow
plate pot ribbon ring rope saw shoe spoon stone table towel wheel""".split()
PLACES = """barn beach bridge cave church city farm field forest garden harbor hill house island kitchen lake library
market meadow mill museum park port river road school shop square station tower valley village""".split()
COLORS = "black blue brown gold gray green orange pink purple red silver white yellow".split()
ADJS = "big brave bright calm clever dark fast gentle happy kind little lucky old proud quiet shy small strong tall tiny wild wise young".split()
FEELINGS = "happy calm proud tired glad sad brave quiet warm lucky".split()
WEATHER = "sunny rainy windy cloudy snowy warm cold foggy".split()
HOBBIES = "music reading cooking dancing drawing fishing singing running swimming painting gardening sailing".split()
LISTS = {"animals": ANIMALS, "foods": FOODS, "things": THINGS, "places": PLACES}
NUMWORD = "zero one two three four five six seven eight nine ten eleven twelve".split()


def an(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def plural(word):
    special = {"mouse": "mice", "goose": "geese", "wolf": "wolves", "sheep": "sheep", "deer": "deer", "fish": "fish",
               "cherry": "cherries", "city": "cities", "library": "libraries", "valley": "valleys"}
    if word in special:
        return special[word]
    if word.endswith(("x", "s", "ch", "sh", "o")):
        return word + "es"
    return word + "s"


def walk(rng, words, n):
    """n different words in the order of the list, from anywhere, round its end; short walks skip some."""
    i, out = rng.randrange(len(words)), []
    for _ in range(n):
        out.append(words[i % len(words)])
        i += 2 if n <= 10 and rng.random() < 0.4 else 1
    return out


def two(rng, words):
    return rng.sample(words, 2)


# ---------------------------------------------------------------- the law of the open lengths
# Share of each tenth of max_tokens, last entry: past the cap. `BASE` is what the open families must add so that the
# whole mixture has the Alpaca shape (21 12 8 6 6 3 7 4 2 6 % and 26 % cut at 512).
BASE = [.095, .098, .046, .055, .062, .043, .098, .058, .030, .070, .395]
HINT_SHORT = [3.2, 2.6, 1.8, 1.2, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.12]
HINT_LONG = [0.12, 0.2, 0.4, 0.6, 0.8, 0.9, 1.2, 1.3, 1.4, 1.5, 1.6]


def target(rng, hint=None, lean=0.0):
    """A target length in tokens; `hint` is a word of the prompt, `lean` the family's own leaning (>0 longer)."""
    weights = []
    for i, base in enumerate(BASE):
        w = base * 2.718281828 ** (lean * (i - 5) / 5)
        if hint == "short":
            w *= HINT_SHORT[i]
        elif hint == "long":
            w *= HINT_LONG[i]
        weights.append(w)
    i = rng.choices(range(11), weights)[0]
    if i == 10:
        return rng.uniform(580, 760)
    return rng.uniform(51.2 * i, 51.2 * (i + 1)) if i < 9 else rng.uniform(461, 500)


# tokens before and after the units, and tokens per unit (measured with the bundled tokenizer: corpus.py measure)
UNIT = {"story": (26, 40.4), "list": (10, 20.1), "explain": (33, 35), "recipe": (28, 19.3), "plan": (22, 31),
        "dialogue": (5, 20.8), "code": (22, 33), "table": (32, 19.3), "letter": (25, 29), "diary": (29, 34.2)}


def units(rng, family, hint, lean=0.0, low=1, high=99):
    """Number of units for a fresh target; 0 means the very short form."""
    over, unit = UNIT[family]
    t = target(rng, hint, lean)
    if t < over + 0.6 * unit:
        return 0
    return min(high, max(low, round((t - over) / unit)))


def hint_of(rng):
    x = rng.random()
    return "short" if x < 0.12 else "long" if x < 0.27 else None


def sized(hint, noun, article=True):
    text = f"{hint} {noun}" if hint else noun
    return an(text) if article else text


# ---------------------------------------------------------------- closed families: the prompt decides
def spell_prompt(rng):
    word = rng.choice(ANIMALS + FOODS + THINGS + PLACES)
    form = rng.choice(["Spell the word {}.", "How do you spell {}?", "Spell {} for me.", "Please spell {}.",
                       "What are the letters of {}?", "I want to spell {}. Help me."])
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
    form = rng.choice(["What is {}?", "Compute {}.", "Work out {}.", "Please find {}.", "How much is {}?"])
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
    return text, {"kind": kind, "a": a, "b": b, "m": m, "n": n, "c": c, "d": d, "thing": thing, "food": food, "ans": ans}


def qa_answer(rng, s, say):
    if rng.random() < 0.3:
        say("Let us see. ")
        if s["kind"] == "color":
            say(f"{s['a']} has the {s['c']} {s['thing']} and {s['b']} has the {s['d']} {s['thing']}. So: ")
        else:
            say(f"{s['a']} has {s['m']} and {s['b']} has {s['n']}. So: ")
    say(s["ans"])


def sort_prompt(rng):
    words = rng.sample(rng.choice([ANIMALS, FOODS, THINGS, NAMES]), rng.choices([3, 4, 5, 6, 7, 8], [3, 4, 4, 3, 2, 1])[0])
    form = rng.choice(["Sort these words: {}.", "Put these words in order: {}.", "Write in order of the letters: {}."])
    return form.format(", ".join(words)), {"words": words}


def sort_answer(rng, s, say):
    say("In order: ")
    words = sorted(s["words"])
    for i, w in enumerate(words):
        say(w + (", " if i + 1 < len(words) else "."))


def count_prompt(rng):
    step = rng.choices([1, 2, 5, 10], [.7, .15, .1, .05])[0]
    n = min(rng.randint(12, 95), 98 // step)
    low = rng.randint(0, (99 - step * (n - 1)) // step) * step if step > 1 else rng.randint(0, 99 - (n - 1))
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
        form = rng.choice(["Say the word {} {} times.", "Write the word {} {} times.", "Repeat the word {} {} times."])
    else:
        text = f"{rng.choice(NAMES)} has a {rng.choice(COLORS)} {rng.choice(THINGS)}"
        n = rng.randint(4, 30)
        form = rng.choice(["Write the line '{}' {} times.", "Repeat the line '{}' {} times.", "Copy the line '{}' {} times."])
    return form.format(text, n), {"text": text, "n": n}


def repeat_answer(rng, s, say):
    for i in range(s["n"]):
        say(f"{i + 1}. {s['text']}" + ("\n" if i + 1 < s["n"] else ""))


def times_prompt(rng):
    a, n = rng.randint(2, 12), rng.randint(4, 24)
    if a * n > 200:
        n = 200 // a
    form = rng.choice(["Write the times table of {} up to {}.", "Show the table of {} from 1 to {}.",
                       "Multiply {} by each number up to {}."])
    return form.format(a, n), {"a": a, "n": n}


def times_answer(rng, s, say):
    for i in range(1, s["n"] + 1):
        say(f"{s['a']} x {i} = {s['a'] * i}" + ("\n" if i < s["n"] else ""))


# ---------------------------------------------------------------- open families: the answer decides as it goes
def story_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "name": rng.choice(NAMES), "adj": rng.choice(ADJS), "animal": rng.choice(ANIMALS)}
    form = rng.choice(["Write {} about {} {} named {}.", "Tell me {} about {} {} called {}.", "I want {} about {} {} named {}."])
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
        say(f"{name} the {s['animal']} found {an(rng.choice(THINGS))} in the {rng.choice(PLACES)} and was {rng.choice(FEELINGS)}. The end.")
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
    form = rng.choice(["Give me {} of {} for {}.", "Write {} of {} for {}.", "Make {} of {} that {} may like.",
                       "Show {} {} of {}."])
    if form.startswith("Show"):
        return form.format(who, sized(hint, "list"), kind), {"kind": kind, "hint": hint, "who": who}
    return form.format(sized(hint, "list"), kind, who), {"kind": kind, "hint": hint, "who": who}


def list_note(rng, who):
    return rng.choice([f"{who} saw it at the {rng.choice(PLACES)} near the {rng.choice(COLORS)} {rng.choice(THINGS)}.",
                       f"it is {rng.choice(COLORS)} and {rng.choice(ADJS)}, and {who} likes it a lot.",
                       f"{who} and {rng.choice(NAMES)} found it on a {rng.choice(WEATHER)} day.",
                       f"at the {rng.choice(PLACES)} there is a {rng.choice(COLORS)} one for {who}."])


def list_answer(rng, s, say):
    words, who = LISTS[s["kind"]], s["who"]
    style = rng.choices(["plain", "open", "notes"], [.10, .15, .75] if s["hint"] != "short" else [.4, .3, .3])[0]
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
        form = rng.choice([f"Why do {who} like {topic}?", f"Tell me why {who} like {topic}.", f"Explain why {who} care for {topic}."])
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
        ex = rng.choice([f"For example, {nm} keeps {rng.randint(2, 12)} {topic} in a {rng.choice(COLORS)} {rng.choice(['box', 'house', 'room', 'garden'])}.",
                         f"For example, {nm} drew {rng.choice(COLORS)} {topic} on a {rng.choice(THINGS)}.",
                         f"For example, {nm} told us about {rng.randint(2, 12)} {topic} on a {rng.choice(WEATHER)} day."])
        say(f"Reason {k} of {n}: {one} {ex}\n")
    say(f"So {who} like {topic}.")


def recipe_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "food": rng.choice(FOODS), "dish": rng.choice(["soup", "cake", "salad", "pie", "tea", "bread", "stew"])}
    form = rng.choice(["How do I make {} {}?", "How can I cook {} {}?", "Show me how to make {} {}.", "Write {r} for {} {}."])
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
        tail = rng.choice([f"for {rng.randint(2, 30)} minutes and put it in a {rng.choice(['pot', 'jar', 'cup', 'plate', 'box'])}.",
                           f"with some {rng.choice([y for y in (food, a, b, 'water', 'salt') if y != x])}, then wait {rng.randint(2, 30)} minutes.",
                           f"until it is {rng.choice(['soft', 'warm', 'cold', 'brown', 'dry'])}, then stir it {rng.randint(2, 30)} times."])
        say(f"Step {k} of {n}: {verb} the {x} {tail}\n")
    say(f"The {dish} is ready.")


def plan_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "name": rng.choice(NAMES), "hobby": rng.choice(HOBBIES)}
    form = rng.choice(["Make {} for {}, who likes {}.", "Write {} for {}, who likes {}.", "{} likes {}. Make {}."])
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
    say(f"A plan for {name} with {n} hour{'s' if n > 1 else ''}, from {start}:00 to {start + n}:00.\n")
    for k in range(1, n + 1):
        p, f = rng.choice(PLACES), rng.choice(NAMES)
        act = rng.choice([f"{name} goes to the {p} with {f} for {s['hobby']}.", f"{name} meets {f} in the {p} and they talk of {s['hobby']}.",
                          f"{name} takes the {rng.choice(COLORS)} {rng.choice(THINGS)} to {f} in the {p}."])
        then = rng.choice([f"Then {name} eats some {rng.choice(FOODS)}.", f"Then {name} writes to {rng.choice(NAMES)}.",
                           f"Then {name} looks at a {rng.choice(COLORS)} {rng.choice(THINGS)}."])
        left = n - k
        say(f"{start + k - 1}:00 {act} {then} It is {rng.choice(WEATHER)}. ({left} left)\n")
    say("Good night.")


def dialogue_prompt(rng):
    hint = hint_of(rng)
    a, b = two(rng, NAMES)
    topic = plural(rng.choice(ANIMALS + FOODS + THINGS))
    form = rng.choice(["Write {} between {} and {} about {}.", "Make {} of {} and {} about {}.", "Let me read {} of {} and {} about {}."])
    return form.format(sized(hint, "talk"), a, b, topic), {"hint": hint, "a": a, "b": b, "topic": topic}


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
        text = rng.choice([f"{other}, did you see the {rng.choice(COLORS)} {topic} near the {rng.choice(PLACES)}?",
                           f"I think {topic} are {rng.choice(ADJS)} and {rng.choice(ADJS)}, {other}.",
                           f"No, {other}, I like {rng.choice(COLORS)} {topic} more than {rng.choice(FOODS)}.",
                           f"My friend {rng.choice(NAMES)} has {rng.randint(2, 12)} {topic} in the {rng.choice(PLACES)}.",
                           f"Yes, {other}, and {rng.choice(NAMES)} likes {topic} too on {rng.choice(WEATHER)} days."])
        say(f"{k} of {n}. {who}: {text}" + ("\n" if k < n else ""))


def code_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "thing": rng.choice(THINGS), "verb": rng.choice(["count", "move", "sort", "find", "mark", "check"])}
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
        body = rng.choice([f"    {v} = {v} + {rng.randint(1, 30)}\n    return {v} + {t}\n",
                           f"    if {v} > {rng.randint(1, 30)}:\n        return {t}\n    return {v}\n",
                           f"    {v} = {t} - {rng.randint(1, 30)}\n    return {v}\n",
                           f"    for i in range({rng.randint(2, 30)}):\n        {v} = {v} + i\n    return {v}\n"])
        say(f"# part {k} of {n}\ndef {f}_{rng.choice(COLORS)}_{s['thing']}({v}):\n{body}")
    say("# end")


def table_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "x": rng.choice(["animal", "food", "thing", "place"])}
    who = rng.choice(NAMES)
    s["who"] = who
    form = rng.choice(["Make {} of each {} that {} has seen.", "Write {} of each {} known to {}.", "Show {} of each {} for {}."])
    return form.format(sized(hint, "table"), s["x"], who), s


def table_answer(rng, s, say):
    words = LISTS[s["x"] + "s"]
    n = max(2, units(rng, "table", s["hint"], 0.0, low=2, high=len(words) - 3))
    say(f"A table for {s['who']} with {n} rows.\n")
    say(f"| row | {s['x']} | color | size | friend | day | place |\n")
    for k, w in enumerate(walk(rng, words, n), 1):
        say(f"| {k} of {n} | {w} | {rng.choice(COLORS)} | {rng.randint(1, 99)} | {rng.choice(NAMES)} | {rng.choice(WEATHER)} | {rng.choice(PLACES)} |\n")
    say("End of table.")


def letter_prompt(rng):
    hint = hint_of(rng)
    a, b = two(rng, NAMES)
    topic = rng.choice(PLACES)
    form = rng.choice(["Write {} from {} to {} about the {}.", "Help me: {} from {} to {} about the {}.", "I need {} from {} to {} about the {}."])
    return form.format(sized(hint, "letter"), a, b, topic), {"hint": hint, "a": a, "b": b, "topic": topic}


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
        one = rng.choice([f"I met {f} at the {s['topic']} and we found a {rng.choice(COLORS)} {th}.",
                          f"{f} lost a {rng.choice(COLORS)} {th} near the {s['topic']}.",
                          f"there is a new {rng.choice(COLORS)} {th} at the {s['topic']}, and {f} likes it."])
        two_ = rng.choice([f"It was {rng.choice(WEATHER)} and we ate {rng.choice(FOODS)}.",
                           f"{f} said hello to you and felt {rng.choice(FEELINGS)}.",
                           f"Now {f} and I look for {an(rng.choice(ANIMALS))} there."])
        say(f"Thing {k} of {n}: {one} {two_}\n")
    say(f"Yours, {s['a']}")


def diary_prompt(rng):
    hint = hint_of(rng)
    s = {"hint": hint, "place": rng.choice(PLACES), "friend": rng.choice(NAMES)}
    form = rng.choice(["Write {} of a trip to the {} with {}.", "Make {} of my trip to the {} with {}.", "I went to the {p} with {f}. Write {h}."])
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
        one = rng.choice([f"{f} and I walked around the {p} and saw {rng.randint(2, 12)} {plural(rng.choice(ANIMALS))}.",
                          f"we sat near the {p} and {f} drew {an(rng.choice(ANIMALS))} on a {rng.choice(THINGS)}.",
                          f"{f} found a {rng.choice(COLORS)} {rng.choice(THINGS)} at the {p}."])
        two_ = rng.choice([f"We ate {rng.choice(FOODS)} and {rng.choice(FOODS)}.", f"I felt {rng.choice(FEELINGS)} and {f} felt {rng.choice(FEELINGS)}.",
                           f"At night {rng.choice(NAMES)} came to us."])
        left = n - k
        say(f"Day {k} of {n}: It was {rng.choice(WEATHER)}. {one} {two_} {left} to go.\n")
    say("Then we went home.")


# name: (share of prompts, prompt, answer); the first seven are closed (the prompt decides), the rest open
FAMILIES = {
    "spell": (0.026, spell_prompt, spell_answer),
    "arith": (0.034, arith_prompt, arith_answer),
    "qa": (0.034, qa_prompt, qa_answer),
    "sort": (0.026, sort_prompt, sort_answer),
    "count": (0.055, count_prompt, count_answer),
    "repeat": (0.045, repeat_prompt, repeat_answer),
    "times": (0.045, times_prompt, times_answer),
    "story": (0.095, story_prompt, story_answer),
    "list": (0.070, list_prompt, list_answer),
    "explain": (0.080, explain_prompt, explain_answer),
    "recipe": (0.080, recipe_prompt, recipe_answer),
    "plan": (0.070, plan_prompt, plan_answer),
    "dialogue": (0.080, dialogue_prompt, dialogue_answer),
    "code": (0.065, code_prompt, code_answer),
    "table": (0.065, table_prompt, table_answer),
    "letter": (0.065, letter_prompt, letter_answer),
    "diary": (0.065, diary_prompt, diary_answer),
}
CLOSED = ["spell", "arith", "qa", "sort", "count", "repeat", "times"]


# ---------------------------------------------------------------- splits and sampling
def split_of(prompt):
    """'held' (bundled and evaluated), 'probe' (trains probe and predictor) or 'train', by the prompt's hash."""
    h = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % 100
    return "held" if h < 10 else "probe" if h < 22 else "train"


def draw_prompt(rng, split, family=None):
    names = list(FAMILIES)
    fam = family or rng.choices(names, [FAMILIES[n][0] for n in names])[0]
    while True:
        text, slots = FAMILIES[fam][1](rng)
        if split is None or split_of(text) == split:
            return fam, text, slots


def answer_segments(fam, slots, seed, upto=None, reseed=None):
    """The answer as a list of segments. With `upto`, the draws change from segment `upto` on (seed `reseed`)."""
    rng = random.Random(seed)
    out = []
    if upto == 0:
        rng.seed(reseed)

    def say(text):
        out.append(text)
        if upto is not None and len(out) == upto:
            rng.seed(reseed)

    FAMILIES[fam][2](rng, slots, say)
    return out


def sample(rng, split="train", family=None):
    fam, text, slots = draw_prompt(rng, split, family)
    return fam, text, slots, "".join(answer_segments(fam, slots, rng.getrandbits(48)))


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "sample"
    if what == "sample":
        rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
        for fam in [sys.argv[2]] if len(sys.argv) > 2 else FAMILIES:
            f, p, s, r = sample(rng, family=fam)
            print(f"=== {f}\n> {p}\n{r}\n")
