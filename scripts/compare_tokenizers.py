#!/usr/bin/env python3
"""Compares haggle's tokenizer with Hugging Face's `tokenizers` library.

usage: compare_tokenizers.py make FOLDER                      small tokenizers of every kind, each with its cases
       compare_tokenizers.py check HAGGLE TOKENIZER ... [-n N]   N random texts (2000) through both programs

`make` trains tiny vocabularies and writes FOLDER/<kind>/tokenizer.json and cases.jsonl: the text, the ids that the library
gives it ("add_special_tokens" off), "plain" where special tokens were to be read as text, and "reversible" where decoding
gives the text back. tests/model/test_tokenizer.c runs every folder of tests/tokenizers. Needs the package `tokenizers`.
"""
import json
import os
import random
import subprocess
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """The quick brown fox jumps over the lazy dog. It's what they'll say, isn't it? We've been here; I'm sure you'd agree.
In 2024 there were 1234567 results, 99.5% of them good. def main(argc, argv):\n    return sum(x for x in range(10))\n
Der schnelle braune Fuchs springt über den faulen Hund. Ça va? Où est la bibliothèque? 你好，世界。 こんにちは 안녕하세요
Привет, мир! The model reads the text and the text reads the model. the the the and and of of to to in in is is
    if (x == y) {\n        printf("%d\\n", x);\n    }\n\n\n\tTabs\tand  double  spaces   here. 😀 😀 👩‍💻 … “quoted” — dashes
HELLO WORLD Hello World hello world ABC abc 123 456 789 000 111 aaa bbb www http://example.org/path?query=1&x=2
""".splitlines(keepends=True) * 3

L3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = L3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
UP, LOW = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UP}]*[{LOW}]+{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[{UP}]+[{LOW}]*{SUFFIX}|\p{{N}}{{1,3}}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = O200K.replace(SUFFIX, "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


def special(text, **more):
    return AddedToken(text, special=True, normalized=False, **more)


N = normalizers
END = [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")]
SPACES = [AddedToken(" " * n, normalized=True) for n in range(2, 9)]
FLAGS = [AddedToken("<one>", single_word=True, normalized=False), AddedToken("<left>", lstrip=True, normalized=False),
         AddedToken("<right>", rstrip=True, normalized=False), AddedToken("<both>", lstrip=True, rstrip=True),
         AddedToken("word", single_word=True), special("<s>"), special("<s>x"), AddedToken("<S>y"), special("<mask>", lstrip=True)]

# name: (pre-tokenizer, normalizer, added tokens, changes to the file)
KINDS = {
    "gpt2": (byte_level(regex=True), None, END[:1], {}),
    "roberta": (byte_level(prefix=True, regex=True), None, END[:1], {}),
    "llama3": (sequence(split(L3), byte_level()), None, END, {"ignore_merges": True}),
    "qwen2": (sequence(split(QWEN), byte_level()), N.NFC(), END, {}),
    "starcoder": (sequence(pre_tokenizers.Digits(individual_digits=True), byte_level(regex=True)), None, END, {}),
    "cl100k": (sequence(split(CL100K, "removed", True), byte_level()), None, END, {}),
    "o200k": (sequence(split(O200K), byte_level()), None, END, {"ignore_merges": True}),
    "tekken": (sequence(split(TEKKEN), byte_level()), None, END, {"ignore_merges": True}),
    "deepseek-coder": (sequence(split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(r"[一-龥ࠀ-一가-퟿]+"),
                                pre_tokenizers.Digits(individual_digits=True), byte_level()), None,
                       [special("<｜begin▁of▁sentence｜>"), AddedToken("<｜fim▁hole｜>", normalized=False)], {}),
    "deepseek-v3": (sequence(split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), byte_level()),
                    N.Sequence([]), END, {}),
    "bloom": (sequence(split(BLOOM), byte_level()), None, END, {}),
    "falcon": (sequence(pre_tokenizers.Punctuation("contiguous"), byte_level(regex=True), pre_tokenizers.Digits(False),
                        split("[0-9][0-9][0-9]")), None, END + [AddedToken(">>TITLE<<", normalized=False)], {}),
    "neox": (byte_level(regex=True), N.NFC(), END + SPACES, {}),
    "superbpe": (sequence(split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))"), split(r"(?=(\d{3})+(?!\d))"), byte_level(regex=True)),
                 None, END, {}),
    "added": (byte_level(regex=True), N.Lowercase(), END + FLAGS, {}),
    "added-plain": (byte_level(regex=True), None, END + FLAGS, {}),
    "nfkd": (sequence(split(QWEN), byte_level()), N.Sequence([N.NFKD(), N.Lowercase()]), END, {}),
    "nfkc": (sequence(split(QWEN), byte_level()), N.Sequence([N.NFKC(), N.Strip()]), END, {}),
    "nfd": (sequence(split(QWEN), byte_level()), N.Sequence([N.NFD(), N.Replace(Regex(r"\s{2,}"), " ")]), END, {}),
    "replace": (byte_level(regex=True), N.Sequence([N.Replace("a", "bb"), N.Prepend("_")]), END, {}),
    "pairs": (byte_level(regex=True), None, END, {"pairs": True}),
    "strings": (byte_level(regex=True), None, END, {"pairs": False}),
    "whitespace": (sequence(pre_tokenizers.Whitespace(), byte_level()), None, END, {}),
    "whitespace-split": (sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), byte_level(True)), None, END, {}),
    "unknown": (byte_level(regex=True), None, END + [special("<unk>")], {"unk": "<unk>", "drop": True}),
    "unknown-fused": (byte_level(regex=True), None, END + [special("<unk>")], {"unk": "<unk>", "drop": True, "fuse_unk": True}),
}
for b in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
    KINDS["split-" + b.replace("_", "-")] = (sequence(split(r"\d|[,.]+", b), byte_level()), None, END, {})
    KINDS["split-invert-" + b.replace("_", "-")] = (
        sequence(pre_tokenizers.Split("th", b, True), byte_level(prefix=b == "removed")), None, END, {})

POOL = (list("abcdefthexyzABCTHE") * 2 + list("  \t\n\r''.,!?()-_/^%$+|0123456789") +
        ["'s", "'LL", "'ſ", "'re", "  ", "    ", "\n\n", " \n", "\r\n", "\u00a0", "\u3000", "\u200b", "\u0085", "é", "É", "e\u0301",
         "ß", "ſ", "K", "Å", "你", "好", "の", "가", "각", "Ω", "ω", "Я", "я", "ǅ", "ʰ", "ª", "²", "½", "Ⅷ", "٣", "।", "،", "…", "。",
         "😀", "👩‍💻", "\u0301", "\u0323", "\u0e33", "ﬁ", "①", "İ", "ı", "ς", "\u2028", "\uFFFD", "𐐀", "－", "the ", " and", " of",
         "<|endoftext|>", "<|im_start|>", "<one>", "<left>", "<right>", "<both>", "word", "words", "<s>", "<s>x", "<S>Y", "<mask>",
         "<｜begin▁of▁sentence｜>", "<｜fim▁hole｜>", ">>TITLE<<", "th", "<", ">", "|"])
FIXED = ["", " ", "  ", "\n", "\t", "a", " a", "Hello world", "Hello  world", " Hello world ", "It's I'LL we've", "1 12 123 1234 12345 1234567",
         "The model reads the text.\n\nThe text reads back.\r\n", "def f(x):\n    return x\n\n\n", "你好，世界。 こんにちは 안녕하세요",
         "e\u0301 é ﬁ ① ½ Å", "a<|endoftext|>b", "<|endoftext|><|im_start|>user\nhi<|im_end|>", " <|endoftext|> ", "  <left>  <right>  <both>  x",
         "<one> <one>x x<one> (<one>)", "word words sword word.", "<s><s>x<s> <S>Y <s>y", "a <mask> b  <mask>c", "3.14159, 2,718,281.8", "aaaaaaaaaaaaaaaaaaaa",
         "                    x", "😀😀 👩‍💻!", "\u0301\u0323a\u0323\u0301", "A\u030a\u0301", "각 \u1100\u1161\u11a8", "İstanbul ΣΑΣ"]


def texts(seed, n):
    r = random.Random(seed)
    return ["".join(r.choice(POOL) for _ in range(r.randrange(1, 24))) for _ in range(n)]


def build(pre, normalizer, added, change):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder, t.post_processor = pre, decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    if normalizer is not None:
        t.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + 220, initial_alphabet=alphabet, show_progress=False)
    t.train_from_iterator(CORPUS, trainer)
    d = json.loads(t.to_str())
    model = d["model"]
    if change.get("drop"):  # bytes that text can have and the vocabulary has not
        merged = {c for m in model["merges"] for c in ("".join(m) if isinstance(m, list) else m)}
        gone = [k for k in model["vocab"] if len(k) == 1 and k not in merged]
        kept = [k for k, _ in sorted(model["vocab"].items(), key=lambda x: x[1]) if k not in gone] + [change["unk"]]
        model["vocab"] = {k: i for i, k in enumerate(kept)}
        model["unk_token"] = change["unk"]
    for key in ("ignore_merges", "fuse_unk"):
        if key in change:
            model[key] = change[key]
    t = Tokenizer.from_str(json.dumps(d))
    for a in added:  # one by one: ids in this order
        (t.add_special_tokens if a.special else t.add_tokens)([a])
    d = json.loads(t.to_str())
    if "pairs" in change:
        merges = [m if isinstance(m, list) else m.split(" ") for m in d["model"]["merges"]]
        d["model"]["merges"] = merges if change["pairs"] else [" ".join(m) for m in merges]
    return d


def case(t, text, plain=False):
    t.encode_special_tokens = plain
    ids = t.encode(text, add_special_tokens=False).ids
    t.encode_special_tokens = False
    c = {"text": text, "ids": ids, "reversible": t.decode(ids, skip_special_tokens=False) == text}
    if plain:
        c["plain"] = True
    return json.dumps(c, ensure_ascii=False)


def make(folder):
    for number, (name, parts) in enumerate(KINDS.items()):
        d = build(*parts)
        path = os.path.join(folder, name)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(d, f, ensure_ascii=False)
        t = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        lines = [case(t, x) for x in FIXED + texts(number, 60)] + [case(t, x, True) for x in FIXED[16:24]]
        with open(os.path.join(path, "cases.jsonl"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        print(f"{name}: {t.get_vocab_size()} tokens, {len(lines)} cases")


def check(haggle, paths, n):
    off = 0
    for path in paths:
        file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
        t = Tokenizer.from_file(file)
        t.no_truncation()
        t.no_padding()
        some = FIXED + texts(file, n)
        lines = "".join(json.dumps({"text": x}) + "\n" for x in some)
        out = subprocess.run([haggle, "tokenize", "--tokenizer", file], input=lines.encode(), stdout=subprocess.PIPE, check=True)
        mine = [json.loads(x) for x in out.stdout.decode().splitlines()]
        assert len(mine) == len(some), f"{len(mine)} lines for {len(some)} texts"
        bad = [(x, a, b) for x, a, b in zip(some, (t.encode(x, add_special_tokens=False).ids for x in some), mine) if a != b]
        for x, a, b in bad[:3]:
            print(f"  {x!r}\n    library {a}\n    haggle  {b}")
        print(f"{path}: {len(some)} texts, {len(bad)} differ")
        off += len(bad)
    return 1 if off else 0


def main(args):
    n = 2000
    if "-n" in args:
        at = args.index("-n")
        n = int(args[at + 1])
        del args[at:at + 2]
    if len(args) == 2 and args[0] == "make":
        return make(args[1])
    if len(args) >= 3 and args[0] == "check":
        return check(args[1], args[2:], n)
    print(__doc__, file=sys.stderr)
    return 2


sys.exit(main(sys.argv[1:]))
