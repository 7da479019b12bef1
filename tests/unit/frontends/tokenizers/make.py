#!/usr/bin/env python3
"""Makes the goldens of tests/unit/frontends/tokenizer_files_test.cpp: tiny tokenizers, trained on the text below with every
kind of normalizer, pre-tokenizer, model, post-processor and decoder, and what Hugging Face's `tokenizers` and `sentencepiece`
make of some texts with them. Needs both (tools/oracles); the test needs neither.

    tests/unit/frontends/tokenizers/make.py
"""
import json
import os
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = """The boats came in at dusk, as they always had, and the women counted them from the wall.
Twelve boats; 12 lanterns. "It's late," said one. Nobody's answer was heard over the water!
Ein Fluß, zwei Brücken, drei Mühlen. Été, naïve, façade, Łódź, Ærø. Ночь и река. 河の水 は 静か。
def count(boats):  # 3 spaces follow
    return sum(1 for boat in boats if boat.lit)\t# 100 % done
the wall the water the women the boats the lanterns the river the night the answer counted counting counts
""".splitlines(keepends=True) * 3
TEXTS = [
    "", " ", "the boats", " The women  counted   them.\n", "It's 12 o'clock; they'll wait, won't they? I'LL SEE.",
    "Été naïve FAÇADE cafe\u0301 ﬁne ①②③ ½ Ⅷ", "Ночь и река — 河の水は静か。 한국어 e\u0323\u0302", "def f(x):\n    return x\t\t# 1234567\r\n\r\n",
    "<s>the wall</s> <mask> [CLS]water[SEP] <|end|>boats<|end|>", "a\u00a0b\u3000c\u200bd\u2028e", "😀👨‍👩‍👧 ΑΣ Σ İstanbul ẞ ǅ",
    "▁the▁wall▁▁x", "...!!!???--- (a)[b]{c} $1.50+2=3 a_b-c", "boatsboatsboats unknownwordsareverylonghere" + "x" * 40, "\x00\x07zero",
    "   leading and trailing   ", "line\n\n\n  next\n line ", "words,with.punctuation;only:here",
]


def bpe(**options):
    tokenizer = Tokenizer(models.BPE(**options))
    return tokenizer


def train(tokenizer, trainer):
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bpe_trainer(size=330, **options):
    return trainers.BpeTrainer(vocab_size=size, show_progress=False, **options)


ALPHABET = pre_tokenizers.ByteLevel.alphabet()
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
OTHER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(pre, normalizer=None, **options):
    t = bpe(**options)
    t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    return train(t, bpe_trainer(initial_alphabet=ALPHABET))


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def llama():
    """As Llama 2's tokenizer.json: no words, U+2581 for spaces, bytes for what is unknown."""
    t = bpe(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = split("▁", "merged_with_next")  # for training only
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    train(t, bpe_trainer(420, special_tokens=specials))
    t.pre_tokenizer = None
    j = json.loads(t.to_str())
    j["pre_tokenizer"] = None
    j["added_tokens"] = j["added_tokens"][:3]
    t = Tokenizer.from_str(json.dumps(j))
    t.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return t


def metaspace(scheme, split_words, normalizer=None):
    t = bpe(unk_token="<unk>")
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    train(t, bpe_trainer(200, special_tokens=["<unk>", "<s>", "</s>"]))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split_words)
    t.decoder = decoders.Metaspace(prepend_scheme=scheme)
    t.add_tokens([AddedToken("<|end|>", special=False, normalized=False)])
    return t


def unigram(byte_fallback=False):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<unk>", "<s>", "</s>"]
    if byte_fallback:
        specials += [f"<0x{b:02X}>" for b in range(256)]
    train(t, trainers.UnigramTrainer(vocab_size=len(specials) + 150, show_progress=False, special_tokens=specials, unk_token="<unk>"))
    if byte_fallback:
        j = json.loads(t.to_str())
        j["model"]["byte_fallback"] = True
        j["added_tokens"] = j["added_tokens"][:3]
        t = Tokenizer.from_str(json.dumps(j))
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    t.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 1), ("</s>", 2)])
    return t


def word_piece(pre, **normalizer):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer = normalizers.BertNormalizer(**normalizer)
    t.pre_tokenizer = pre
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    train(t, trainers.WordPieceTrainer(vocab_size=220, show_progress=False, special_tokens=specials))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    t.decoder = decoders.WordPiece()
    return t


def suffixed():
    t = bpe(unk_token="<unk>", end_of_word_suffix="</w>")
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    train(t, bpe_trainer(200, special_tokens=["<unk>"], end_of_word_suffix="</w>"))
    t.decoder = decoders.BPEDecoder("</w>")
    return t


def prefixed():
    t = bpe(unk_token="<unk>", continuing_subword_prefix="@@")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("contiguous")])
    return train(t, bpe_trainer(260, special_tokens=["<unk>"], continuing_subword_prefix="@@"))


def added():
    t = byte_level(level(regex=True), normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]))
    t.add_special_tokens([AddedToken("<|end|>"), AddedToken("<mask>", lstrip=True, rstrip=True), AddedToken("<s>", normalized=True)])
    t.add_tokens([AddedToken("wall", single_word=True, normalized=False), AddedToken("WATER", normalized=True), AddedToken("boat")])
    t.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        "<s> $A <|end|>", None, [("<s>", t.token_to_id("<s>")), ("<|end|>", t.token_to_id("<|end|>"))])])
    return t


def precompiled(model):
    """A table of replacements that SentencePiece compiled for a model of ours."""
    data = model
    t = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    t.normalizer = normalizers.Precompiled(data)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(False), pre_tokenizers.BertPreTokenizer()])
    train(t, trainers.WordLevelTrainer(vocab_size=90, show_progress=False, special_tokens=["<unk>"]))
    return t


def fields(message):
    """Number and value of the fields of a message of protocol buffers."""
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    at = 0
    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = varint() if key & 7 == 2 else 4
            yield key >> 3, message[at:at + size]
            at += size


def charsmap_of(model):
    normalizer = [v for number, v in fields(model) if number == 3][0]
    return [v for number, v in fields(normalizer) if number == 2][0]


def modernbert():
    """As ModernBERT's: GPT-NeoX's words, runs of spaces as tokens, and BERT's own tokens around a text."""
    t = bpe()
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = level(regex=True)
    t.decoder = decoders.ByteLevel()
    train(t, bpe_trainer(initial_alphabet=ALPHABET, special_tokens=["<|padding|>", "<|endoftext|>"]))
    t.add_tokens([AddedToken(" " * n, special=False, normalized=True) for n in (4, 3, 2)])
    t.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True)])
    around = [(name, t.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    t.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", around)
    return t


def sentence_piece(name, kind, **options):
    with open("corpus.txt", "w") as f:
        f.writelines(CORPUS)
    sentencepiece.SentencePieceTrainer.train(input="corpus.txt", model_prefix="m", model_type=kind, minloglevel=2, num_threads=1,
                                             **options)
    return name, open("m.model", "rb").read()


def sentence_pieces():
    os.chdir(tempfile.mkdtemp())
    rules = "rules.tsv"
    pairs = {"ﬁ": "fi", "É": "e", "é": "e", "e\u0301": "e", "A": "a", "\u3000": " ", "\u00a0": " ", "\t": " ", "\n": " ", "①": "1", "½": "1/2", "ß": "ss"}
    with open(rules, "w") as f:
        for a, b in pairs.items():
            f.write(" ".join(f"{ord(c):04X}" for c in a) + "\t" + " ".join(f"{ord(c):04X}" for c in b) + "\n")
    mine = {"normalization_rule_tsv": rules}
    plain = {"normalization_rule_name": "identity"}
    return [
        sentence_piece("sp-bpe-llama", "bpe", vocab_size=400, byte_fallback=True, remove_extra_whitespaces=False, **plain),
        sentence_piece("sp-bpe", "bpe", vocab_size=150, user_defined_symbols=["<|end|>", "wall", "▁the"], **mine),
        sentence_piece("sp-unigram", "unigram", vocab_size=110, **mine),
        sentence_piece("sp-unigram-bytes", "unigram", vocab_size=365, byte_fallback=True, user_defined_symbols=["boat", "12"],
                       add_dummy_prefix=False, **mine),
        sentence_piece("sp-suffix", "unigram", vocab_size=110, treat_whitespace_as_suffix=True, **plain),
    ]


def main():
    pieces = sentence_pieces()
    charsmap = charsmap_of(pieces[1][1])
    all = {
        "gpt2": byte_level(level(regex=True)),
        "gpt2-prefix": byte_level(level(prefix=True, regex=True), normalizers.NFKC()),
        "llama3": byte_level(pre_tokenizers.Sequence([split(Regex(LLAMA3)), level()]), ignore_merges=True),
        "other-words": byte_level(pre_tokenizers.Sequence([split(Regex(OTHER)), level()]), normalizers.NFC()),
        "starcoder": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level(regex=True)])),
        "bloom": byte_level(pre_tokenizers.Sequence([split(Regex(BLOOM)), level()])),
        "falcon": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), level(regex=True), pre_tokenizers.Digits(False),
                                                      split(Regex("[0-9][0-9][0-9]"))])),
        "splits": byte_level(pre_tokenizers.Sequence([split(" ", "merged_with_previous"), split(Regex("[aeiou]"), "merged_with_next"),
                                                      split(Regex(r"\p{L}+"), "contiguous", True), level()])),
        "removed": byte_level(pre_tokenizers.Sequence([split(Regex(r"\s+"), "removed"), split(",", "removed"), level(prefix=True)])),
        "added": added(),
        "llama": llama(),
        "metaspace-always": metaspace("always", True, normalizers.Sequence([])),
        "metaspace-first": metaspace("first", False),
        "metaspace-never": metaspace("never", True, normalizers.Replace(Regex(r"\s"), " ")),
        "unigram": unigram(),
        "unigram-bytes": unigram(True),
        "bert": word_piece(pre_tokenizers.BertPreTokenizer(), lowercase=True),
        "bert-cased": word_piece(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]),
                                 lowercase=False, strip_accents=True, clean_text=False, handle_chinese_chars=False),
        "modernbert": modernbert(),
        "suffixed": suffixed(),
        "prefixed": prefixed(),
        "precompiled": precompiled(charsmap),
    }
    goldens = []
    for name, t in all.items():
        with open(f"{HERE}/{name}.json", "w") as f:
            json.dump(json.loads(t.to_str()), f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
        t = Tokenizer.from_file(f"{HERE}/{name}.json")
        t.encode_special_tokens = True
        plain = [t.encode(text, add_special_tokens=False).ids for text in TEXTS]
        t.encode_special_tokens = False
        goldens.append({
            "file": name + ".json",
            "plain": plain,
            "special": [t.encode(text, add_special_tokens=True).ids for text in TEXTS],
            "decoded": [t.decode(ids, skip_special_tokens=False) for ids in plain],
        })
    for name, content in pieces:
        with open(f"{HERE}/{name}.model", "wb") as f:
            f.write(content)
        sp = sentencepiece.SentencePieceProcessor(model_proto=content)
        plain = [sp.encode(text) for text in TEXTS]
        goldens.append({"file": name + ".model", "plain": plain, "decoded": [sp.decode(ids) for ids in plain]})
    with open(f"{HERE}/goldens.json", "w") as f:
        f.write('{"texts": ' + json.dumps(TEXTS) + ',\n"tokenizers": [\n')
        f.write(",\n".join(json.dumps(g, separators=(",", ":")) for g in goldens))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
