"""A seeded generator of small instruction/answer pairs whose answer lengths are understood.

Every family has a `prompt(rng)` that returns (prompt text, slots) and an `answer(rng, slots, say)`
that calls `say(text)` once per segment. Rule of the house: a random number that decides the length
is drawn in the very segment that makes it readable in the text. So the answers that could still
follow a given beginning are obtained by replaying the same draws up to that segment and drawing
afresh from there (`continuations`), and the Bayes figures printed by `bayes.py` need no model.

Standard library only. `python corpus.py sample [family]` prints examples.
"""
import hashlib
import random
import sys

from closed import (
    arith_answer,
    arith_prompt,
    count_answer,
    count_prompt,
    qa_answer,
    qa_prompt,
    repeat_answer,
    repeat_prompt,
    sort_answer,
    sort_prompt,
    spell_answer,
    spell_prompt,
    times_answer,
    times_prompt,
)
from prose import (
    explain_answer,
    explain_prompt,
    list_answer,
    list_prompt,
    plan_answer,
    plan_prompt,
    recipe_answer,
    recipe_prompt,
    story_answer,
    story_prompt,
)
from forms import (
    code_answer,
    code_prompt,
    dialogue_answer,
    dialogue_prompt,
    diary_answer,
    diary_prompt,
    letter_answer,
    letter_prompt,
    table_answer,
    table_prompt,
)

MAX_TOKENS = 512          # answers are cut here when served
CUT = MAX_TOKENS + 16     # and here when trained on (no end mark then)

# name: (share of prompts, prompt, answer); the first seven are closed (the prompt decides), the
# rest open
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
    """'held' (bundled and evaluated), 'probe' (trains probe and predictor) or 'train', by the
    prompt's hash."""
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
    """The answer as a list of segments. With `upto`, the draws change from segment `upto` on (seed
    `reseed`)."""
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
