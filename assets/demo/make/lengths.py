"""The law of the open lengths."""
from words import an

# Share of each tenth of max_tokens, last entry: past the cap. `BASE` is what the open families must
# add so that the whole mixture has the Alpaca shape (21 12 8 6 6 3 7 4 2 6 % and 26 % cut at 512).
BASE = [.095, .098, .046, .055, .062, .043, .098, .058, .030, .070, .395]
HINT_SHORT = [3.2, 2.6, 1.8, 1.2, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.12]
HINT_LONG = [0.12, 0.2, 0.4, 0.6, 0.8, 0.9, 1.2, 1.3, 1.4, 1.5, 1.6]


def target(rng, hint=None, lean=0.0):
    """A target length in tokens; `hint` is a word of the prompt, `lean` the family's own leaning
    (>0 longer)."""
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


# tokens before and after the units, and tokens per unit (measured with the bundled tokenizer:
# corpus.py measure)
UNIT = {
    "story": (26, 40.4),
    "list": (10, 20.1),
    "explain": (33, 35),
    "recipe": (28, 19.3),
    "plan": (22, 31),
    "dialogue": (5, 20.8),
    "code": (22, 33),
    "table": (32, 19.3),
    "letter": (25, 29),
    "diary": (29, 34.2),
}


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
