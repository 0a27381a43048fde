"""The corpus's vocabulary, and the little grammar it needs."""

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
    special = {
        "mouse": "mice",
        "goose": "geese",
        "wolf": "wolves",
        "sheep": "sheep",
        "deer": "deer",
        "fish": "fish",
        "cherry": "cherries",
        "city": "cities",
        "library": "libraries",
        "valley": "valleys",
    }
    if word in special:
        return special[word]
    if word.endswith(("x", "s", "ch", "sh", "o")):
        return word + "es"
    return word + "s"


def walk(rng, words, n):
    """n different words in the order of the list, from anywhere, round its end; short walks skip
    some."""
    i, out = rng.randrange(len(words)), []
    for _ in range(n):
        out.append(words[i % len(words)])
        i += 2 if n <= 10 and rng.random() < 0.4 else 1
    return out


def two(rng, words):
    return rng.sample(words, 2)
