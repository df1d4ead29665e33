"""Tokenizers of every family, trained on made-up text, and strings of many scripts: for gen_tokenizers.py."""
import base64
import json
import random
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = r"""<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""

WORDS = """the of and to in is that it was for on are as with his they at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will up other about out many then them
naïve café résumé Übermaß straße fiancée smörgåsbord coöperate Ångström piñata jalapeño ŁÓDŹ żółć Đà Nẵng İstanbul
и в не на я быть он с что а по это она этот к но они мы весь который из у который то за свой что весь год от так о для
και το να του η της με που την από για είναι στο ως ΑΘΗΝΑ ἀρχή
في من على أن إلى هذا التي مع كان عن لا ما هو بِسْمِ ٱللَّهِ
של את על הוא לא זה עם כי אני גם שָׁלוֹם
है के में की से का को और यह हिन्दी क्षत्रिय
ที่ และ ใน ของ เป็น มี ได้ ภาษาไทย กำลัง
的 一 是 不 了 在 人 有 我 他 这 中文 漢字 日本語 ひらがな カタカナ ﾊﾝｶｸ がぎぐ
한국어 안녕하세요 대한민국 각 힣
print( return x += 1; } else { for(int i=0;i<n;i++) def f(self): self.x[i] != None // /* */ #include <stdio.h> \\n "'"
don't I'm we'll THEY'RE you've it's 'tis O'Neill 12 345 6789 3.14 1,000,000 ٣٤٥ ४५६ Ⅳ ½ ² ① 0x1F 2024-01-01""".split()
EMOJI = ["😀", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "❤️", "🏳️‍🌈", "☃", "✈️", "🤦🏻‍♂️", "e\u0301", "a\u0308\u0323", "o\u0323\u0308", "q\u0307\u0323", "ﬁ",
         "ﬃ", "Å", "Ω", "㎏", "ﷺ", "…", "“quoted”", "—", "«»", "¿", "¡", "№", "™", "µ", "ß", "ſ", "K", "ｆｕｌｌ", "１２", "\u1100\u1161\u11a8",
         "[MASK]", "<mask>", "<s>", "</s>", "<|endoftext|>", "[SEP]", "<pad>", "Yesterday", "yesterday", "<0x41>", "▁", "##a", "Ġ"]
SPACES = [" ", " ", " ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u1680", "\u0085",
          "\u180e", "\v", "", ""]
CONTROLS = ["\x00", "\x01", "\x7f", "\u200d", "\u200e", "\ufeff", "\ufffd", "\u00ad", "\u061c", "\ue000", "\u0009", "\u009f"]
RANGES = [(0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea), (0x621, 0x64a), (0x900, 0x97f), (0xe01, 0xe3a),
          (0x300, 0x36f), (0x1100, 0x11ff), (0x1e00, 0x1eff), (0x2000, 0x206f), (0x2100, 0x214f), (0x2460, 0x24ff), (0x3041, 0x30ff),
          (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0xf900, 0xfa6d), (0xff01, 0xffdc), (0x1f300, 0x1f64f), (0x1d400, 0x1d454),
          (0x20000, 0x20100), (0xfb00, 0xfb06), (0x10400, 0x1044f)]


def text(rng):
    """A string of one script or of several."""
    parts, kind = [], rng.random()
    words = rng.sample(WORDS, 12) if kind < 0.4 else WORDS
    for _ in range(rng.randint(0, 14)):
        roll = rng.random()
        if roll < 0.70:
            word = rng.choice(words)
            parts.append(word.upper() if rng.random() < 0.05 else word.title() if rng.random() < 0.1 else word)
        elif roll < 0.82:
            parts.append(rng.choice(EMOJI))
        elif roll < 0.86:
            parts.append(rng.choice(CONTROLS))
        elif roll < 0.90:
            parts.append(rng.choice("aé漢я") * rng.randint(1, 30))
        else:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
        if rng.random() < 0.85:
            parts.append(rng.choice(SPACES))
    return "".join(parts)


def corpus(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        yield " ".join(rng.choice(WORDS) for _ in range(12))


def charsmap():
    """SentencePiece's form of a map of texts (Darts' double array and what its values point at)."""
    table = {"ﬁ": "fi", "ﬃ": "ffi", "Å": "Å", "㎏": "kg", "…": "...", "™": "TM", "\u3000": " ", "\u00a0": " ", "\u200b": " ", "\t": " ",
             "\n": " ", "\x01": "", "\u00ad": "", "①": "1", "½": "1/2", "e\u0301": "é", "a\u0308": "ä", "ſ": "s", "K": "K", "ﷺ": "صلى الله"}
    for i in range(0xff01, 0xff5f):
        table[chr(i)] = chr(i - 0xfee0)
    blob, trie = b"", {}
    for key, value in table.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = len(blob)
        blob += value.encode() + b"\0"
    units, used = [0] * 65536, {0}

    def fill(node, at):
        base = next(b for b in range(1, 65000) if all(b ^ c not in used for c in node))
        for c in node:
            used.add(base ^ c)
        for c, child in node.items():
            units[base ^ c] = child | 1 << 31 if c == 0 else c
        units[at] |= (at ^ base) << 10 | (256 if 0 in node else 0)
        for c, child in node.items():
            if c:
                fill(child, base ^ c)
    fill(trie, 0)
    units = units[:(max(used) | 255) + 1]
    return base64.b64encode(struct.pack("<I", 4 * len(units)) + struct.pack("<%dI" % len(units), *units) + blob).decode()


def bpe(lines, size, byte_level=True, special=(), **opts):
    t = Tokenizer(models.BPE(**opts))
    trainer = dict(vocab_size=size, show_progress=False, special_tokens=list(special))
    if opts.get("end_of_word_suffix"):
        trainer["end_of_word_suffix"] = opts["end_of_word_suffix"]
    if opts.get("continuing_subword_prefix"):
        trainer["continuing_subword_prefix"] = opts["continuing_subword_prefix"]
    if byte_level:
        trainer["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    return t, trainers.BpeTrainer(**trainer)


def changed(t, **model):
    """The tokenizer with other fields of its model."""
    parts = json.loads(t.to_str())
    parts["model"].update(model)
    return Tokenizer.from_str(json.dumps(parts))


def make(size=600):
    """Name -> tokenizer."""
    lines = list(corpus(1, 3000))
    made = {}

    def train(name, t, trainer):
        t.train_from_iterator(lines, trainer)
        made[name] = t
        return t

    t, trainer = bpe(lines, size)
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    train("gpt2", t, trainer).add_special_tokens(["<|endoftext|>"])

    t, trainer = bpe(lines, size)
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    train("roberta", t, trainer).add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True, special=True)])
    t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))

    t, trainer = bpe(lines, size)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t = changed(train("llama3", t, trainer), ignore_merges=True)
    t.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>"])
    bos = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", bos)])])
    made["llama3"] = t

    t, trainer = bpe(lines, size)
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4O), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    train("gpt4o", t, trainer)

    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trainer = trainers.BpeTrainer(
        vocab_size=size + 256, show_progress=False, limit_alphabet=150,
        special_tokens=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)])
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # to train; the file has none
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    train("llama2", t, trainer)
    parts = json.loads(t.to_str())
    parts["pre_tokenizer"] = None
    parts["added_tokens"] = parts["added_tokens"][:3]
    t = made["llama2"] = Tokenizer.from_str(json.dumps(parts))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])

    for name, lower in (("bert", True), ("bert_cased", False)):
        t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        t.normalizer = normalizers.BertNormalizer(lowercase=lower)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece(cleanup=True)
        train(name, t, trainers.WordPieceTrainer(vocab_size=size, show_progress=False, special_tokens=[
            "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
        if lower:
            t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                             special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        else:
            t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))

    def unigram(name, alphabet=True, **opts):
        return trainers.UnigramTrainer(vocab_size=size, show_progress=False, unk_token="<unk>",
                                       special_tokens=["<pad>", "</s>", "<unk>"])

    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Precompiled(base64.b64decode(charsmap()))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    train("t5", t, unigram("t5"))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])

    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(),
                                         normalizers.Lowercase(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.decoder = decoders.Metaspace()
    train("albert", t, unigram("albert")).add_tokens([AddedToken("Yesterday", normalized=True), AddedToken(
        "É", normalized=True), AddedToken("漢字", single_word=True)])

    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Nmt()
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    train("unigram_bytes", t, trainers.UnigramTrainer(vocab_size=size + 256, show_progress=False, unk_token="<unk>",
          special_tokens=["<unk>", "</s>"] + ["<0x%02X>" % i for i in range(256)]))
    parts = json.loads(t.to_str())
    parts["model"]["byte_fallback"] = True
    parts["model"]["vocab"] = [v for v in parts["model"]["vocab"] if len(v[0]) != 1 or ord(v[0]) < 0x500]
    parts["added_tokens"] = parts["added_tokens"][:2]
    made["unigram_bytes"] = Tokenizer.from_str(json.dumps(parts))

    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents(), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    train("words", t, trainers.WordLevelTrainer(vocab_size=size, show_progress=False, special_tokens=["<unk>"]))

    t, trainer = bpe(lines, size, False, ["<unk>"], unk_token="<unk>", end_of_word_suffix="</w>")
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Split(Regex(CLIP), "removed", invert=True)
    t.decoder = decoders.BPEDecoder()
    train("clip", t, trainer)
    t.add_tokens([AddedToken("<|endoftext|>", rstrip=True, normalized=False), AddedToken("<unk>", special=True)])

    t, trainer = bpe(lines, size, False, ["<unk>"], unk_token="<unk>", continuing_subword_prefix="##")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.Punctuation("contiguous")])
    t.decoder = decoders.WordPiece(cleanup=False)
    train("mixed", t, trainer)
    t.add_tokens([AddedToken("<unk>", special=True), AddedToken("yesterday", lstrip=True, rstrip=True, single_word=True)])
    return made
