"""Token ids of GGUF vocabularies by llama.cpp, for runtime/tests/model/gguf/tokenizer.rs.

    python gguf_ids.py vocabularies OUT            # small vocabularies, each with its ids
    python gguf_ids.py ids FILE.gguf OUT [LINES]   # ids of LINES of mixed text (default 10000)

Needs gguf and llama-cpp-python. OUT is a folder; a vocabulary NAME.gguf has its ids in NAME.json:
a list of {"text", "plain", "special"}, where `plain` has special tokens of the text as text and
nothing added, and `special` has them as control tokens and the tokens that the file asks for.
"decoded" is llama.cpp's text of `plain` where that is not the text itself.
"""

import json
import random
import sys
from collections import Counter
from pathlib import Path

SEED = 20261122
LINES = 80
MERGES = 500

CODE = """fn main() { let x = vec![1, 2, 3]; println!("{x:?}"); }
for (int i = 0; i < 10; i++) { sum += a[i] * b[i]; } // dot product
def f(x, *args, **kwargs): return {'a': x, "b": [None, True, 1e-5]}
SELECT name, COUNT(*) FROM users WHERE age >= 21 GROUP BY name;
<div class="row"><p>Don't &amp; won't; I'll, we've, they're, he'd, I'm</p></div>
\tif err != nil {\n\t\treturn fmt.Errorf("read %s: %w", path, err)\n\t}
#include <stdio.h>\r\nint main(void)\r\n{\r\n    return 0;\r\n}
$ curl -s https://example.org/a?b=c&d=%20e | jq '.[0]' > /dev/null 2>&1
x = 0x1F600; y = 3.14159; z = 1_000_000; w = a**2 + b^2 - ~c | d""".split("\n")
WORDS = """the quick brown fox jumps over lazy dogs while scheduling requests by predicted length it's
DON'T I'LL we'Ve a an of in to and is was language model tokens memory kernel attention Café naïve
Übergröße façade coöperate jalapeño smörgåsbord""".split()
SCRIPTS = """日本語のテキスト 中文文本测试 한국어 텍스트 русский текст ελληνικά עברית العربية हिन्दी ภาษาไทย
தமிழ் ქართული հայերեն አማርኛ ខ្មែរ မြန်မာ Tiếng Việt ไม่มีช่องว่าง ﬁ ﬂ Ⅷ ½ ² ₃ ٣٤٥ १२३ 四五 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚
e\u0301 n\u0303 \u1100\u1161\u11a8 ſ K Å \u2126""".split()
EMOJI = ["😀", "🎉", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "🧑🏿‍💻", "☃", "✔️", "🏴‍☠️", "\u200d", "\ufeff"]
SPACES = [" ", "  ", "    ", "\t", "\n", "\n\n", "\n\n\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2003",
          "\u2028", "\u0085", "\x0b", "\x0c", "\u200b", " " * 17, "\n" * 9, "\t \t"]
PUNCTUATION = ["...", "!?", "—", "«»", "“quotes”", "(a)", "[b]", "{c}", "<d>", "$5", "€", "+=", "^~", "|", "`",
               "\\", "/*", "*/", "№", "…", "、。", "¿", "'s", "'", "''", "\"", "_", "__init__", "▁", "▁▁", "©"]


def mixed_line(rng, special):
    """One line of code, scripts, emoji, white space, digits and special tokens."""
    def digits():
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))

    def character():
        while True:
            code = rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x250, 0x3000),
                               rng.randrange(0x3000, 0xFFFE), rng.randrange(0x10000, 0x1FBFF)])
            is_text = not 0xD800 <= code < 0xE000 and not 0xFDD0 <= code < 0xFDF0
            if is_text and code & 0xFFFE != 0xFFFE:
                return chr(code)

    kinds = [lambda: rng.choice(CODE), lambda: " ".join(rng.choices(WORDS, k=rng.randint(1, 8))),
             lambda: rng.choice(SCRIPTS), lambda: rng.choice(EMOJI), lambda: rng.choice(SPACES),
             lambda: rng.choice(PUNCTUATION), digits, character, lambda: rng.choice(WORDS).upper(),
             lambda: rng.choice(special) if special else "<x>"]
    weights = [1, 6, 3, 2, 5, 4, 3, 1, 1, 1]
    parts = []
    for kind in rng.choices(kinds, weights, k=rng.randint(1, 14)):
        parts.append(kind())
        if rng.random() < 0.4:
            parts.append(" ")
    return "".join(parts)


def merged(symbols, pair):
    """`symbols` with each occurrence of `pair` as one."""
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


def train(texts):
    """The merges of a byte-pair encoding of `texts`, each a list of symbols."""
    merges = []
    while len(merges) < MERGES:
        pairs = Counter(pair for text in texts for pair in zip(text, text[1:]))
        known = {a + b for a, b in merges}
        best = next((p for p, _ in pairs.most_common() if p[0] + p[1] not in known), None)
        if best is None:
            break
        merges.append(best)
        texts = [merged(text, best) for text in texts]
    return merges


def byte_characters():
    """GPT-2's map from bytes to printable characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(others)}}


def write(path, tokens, kinds, model, bos, eos, add):
    """Writes a GGUF file that has a vocabulary and no tensors. `add` adds the rest."""
    import gguf
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vocabularies(out):
    """Writes the small vocabularies, each with its ids."""
    rng = random.Random(SEED)
    corpus = [mixed_line(rng, []) for _ in range(400)]
    byte = byte_characters()
    words = [[byte[b] for b in word.encode()] for line in corpus for word in
             line.replace(" ", "\0 ").split("\0") if word]
    merges = train(words)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + ["<tag>", "\n\n\n\n"] + [byte[b] for b in range(256)]
    tokens += [a + b for a, b in merges]
    kinds = [3] * 3 + [4] * 2 + [1] * (len(tokens) - 5)
    for pre in ["smollm", "llama-bpe", "qwen2", "gpt-2", "default", "gpt-4o"]:
        def add(writer):
            writer.add_tokenizer_pre(pre)
            writer.add_token_merges([f"{a} {b}" for a, b in merges])
        path = out / f"bpe-{pre}.gguf"
        write(path, tokens, kinds, "gpt2", 1, 2, add)
        ids(path, out, LINES)
    pieces = train([list(line.replace(" ", "▁")) for line in corpus])
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["<tag>", "    "]
    scores = [0.0] * 3 + [0.0] * 256 + [0.0, 0.0]
    kinds = [2, 3, 3] + [6] * 256 + [4, 4]
    for rank, (a, b) in enumerate(pieces):
        if a + b not in tokens:
            tokens.append(a + b)
            scores.append(-float(rank // 2))  # Pairs of tokens with equal scores.
            kinds.append(1)
    for c in sorted({c for line in corpus for c in line.replace(" ", "▁") if ord(c) < 0x3000}):
        if c not in tokens:
            tokens.append(c)
            scores.append(-float(MERGES))
            kinds.append(1)
    for name, prefix in [("spm", True), ("spm-no-prefix", False)]:
        def add(writer):
            writer.add_token_scores(scores)
            writer.add_add_space_prefix(prefix)
            writer.add_add_eos_token(not prefix)
        path = out / f"{name}.gguf"
        write(path, tokens, kinds, "llama", 1, 2, add)
        ids(path, out, LINES)


def ids(path, out, lines):
    """Writes llama.cpp's ids of `lines` lines."""
    import gguf
    import llama_cpp
    fields = gguf.GGUFReader(str(path)).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    # llama.cpp takes any "</s>" for a control token, also Gemma's, which is a tag of HTML.
    named = [t for t, k in zip(tokens, kinds) if k in (2, 3, 4) and "unused" not in t
             and t.strip() and (k, t) != (4, "</s>")]
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    rng = random.Random(SEED + 1)
    # llama.cpp's detokenizer removes spaces before punctuation for some byte-level vocabularies.
    is_byte_level = fields["tokenizer.ggml.model"].contents() == "gpt2"
    cases = []
    for _ in range(lines):
        text = mixed_line(rng, named[:64])
        raw = text.encode()
        cases.append({"text": text, "plain": model.tokenize(raw, add_bos=False, special=False),
                      "special": model.tokenize(raw, add_bos=True, special=True)})
        decoded = text if is_byte_level else detokenize(llama_cpp, model, cases[-1]["plain"])
        if decoded != text:
            cases[-1]["decoded"] = decoded
    file = out / f"{path.stem}.json"
    file.write_text("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
    print(f"{file}: {lines} lines, {sum(len(c['plain']) for c in cases)} tokens")


def detokenize(llama_cpp, model, tokens):
    """llama.cpp's text of `tokens`."""
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    buffer = bytes(64 * len(tokens) + 64)
    vocab = model._model.vocab
    size = llama_cpp.llama_detokenize(vocab, array, len(tokens), buffer, len(buffer), False, True)
    assert size >= 0
    return buffer[:size].decode()


def main():
    command, *rest = sys.argv[1:]
    out = Path(rest[0] if command == "vocabularies" else rest[1])
    out.mkdir(parents=True, exist_ok=True)
    if command == "vocabularies":
        vocabularies(out)
    else:
        ids(Path(rest[0]), out, int(rest[2]) if len(rest) > 2 else 10_000)


if __name__ == "__main__":
    main()
