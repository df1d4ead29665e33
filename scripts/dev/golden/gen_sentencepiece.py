"""Writes spec/golden/_sentencepiece.safetensors: small models that sentencepiece trains, and ranks that tiktoken's
educational trainer makes, as bytes by name, and "cases", JSON: what both make of texts.

    python scripts/dev/golden/gen_sentencepiece.py        (with sentencepiece, tiktoken, torch, safetensors)
"""
import base64
import contextlib
import io
import json
import os
import tempfile

import sentencepiece
import tiktoken
import torch
from safetensors.torch import save_file
from tiktoken._educational import bpe_train

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../spec/golden/_sentencepiece.safetensors")
LINES = [
    "A tokenizer cuts a text into pieces, and the pieces are numbers.", "The number of a piece is its place in a list.",
    "Grüße aus Köln, a café naïve enough for résumés.", "これはテストです。日本語のテキスト。", "1 2 3 12 123 1234, 3.14!",
    "What is cut is a text; what is joined is a list of pieces.", "for i, piece in ipairs(pieces) do print(i, piece) end",
]
TEXTS = [
    "", " ", "The text is cut.", "  two  spaces \t and\na line ", "Grüße, café, ﬁne", "日本語 テスト", "😀 x😀😀 漢", "▁raw",
    "tokens <x> piece<x>", "A" * 30, "print(12345)",
    "</s> a <s><unk>", "<x>y</s><x>", "<0x41>é<pad>",  # text that reads like pieces of other kinds
]
with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf8", delete=False) as rules:
    rules.write("FB01\t66 69\n9\t20\nA\t20\nDC\tFC\n")  # a ligature, a tab, the end of a line, an umlaut
COMMON = dict(minloglevel=2, hard_vocab_limit=False, normalization_rule_tsv=rules.name)
PLAIN = dict(minloglevel=2, hard_vocab_limit=False, normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True,
             character_coverage=0.98)
MODELS = {
    "unigram": dict(COMMON, vocab_size=150, user_defined_symbols=["<x>"], pad_id=3),
    "unigram bytes": dict(PLAIN, vocab_size=320),
    "pairs": dict(COMMON, vocab_size=160, model_type="bpe", user_defined_symbols=["<x>"]),
    "pairs bytes": dict(PLAIN, vocab_size=380, model_type="bpe"),
    "no prefix": dict(PLAIN, vocab_size=380, model_type="bpe", add_dummy_prefix=False, user_defined_symbols=["<x>"]),
    "characters": dict(COMMON, vocab_size=90, model_type="char"),
    "words": dict(COMMON, vocab_size=30, model_type="word"),
}
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

store, cases = {}, {"pattern": PATTERN}


def add(name, data, encode, decode):
    store[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    cases[name] = [dict(text=text, ids=encode(text), decoded=decode(encode(text))) for text in TEXTS]


for name, options in MODELS.items():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES * 3), model_writer=out, **options)
    model = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    add(name, out.getvalue(), model.encode, model.decode)
with contextlib.redirect_stdout(io.StringIO()):
    ranks = bpe_train(data="\n".join(LINES), vocab_size=300, pat_str=PATTERN, visualise=None)
lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(ranks.items(), key=lambda item: item[1])]
encoding = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
add("tiktoken", b"".join(lines), encoding.encode, encoding.decode)
os.remove(rules.name)
store["cases"] = torch.frombuffer(bytearray(json.dumps(cases).encode()), dtype=torch.uint8)
save_file(store, GOLDEN)
