#!/usr/bin/env python3
"""Tokenizers and what `tokenizers` 0.23 makes of strings of many scripts.

  gen_tokenizers.py                 writes spec/golden/tokenizers.json: each tokenizer's file, a few strings and results
  gen_tokenizers.py --characters    all characters by each tokenizer, as --compare: those of unicodedata2's version of
                                    Unicode (15.0.0 is utf8proc's of Debian 12), without it of Python's
  gen_tokenizers.py --compare N     N strings by each tokenizer, here and by Luminary (`. build/env` first), line by line
  gen_tokenizers.py --speed         megabytes a second of each, on one core, and ours beside it

--only names some of them.

Offsets in the results are bytes, from 0, as a pair from:to."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizer_cases as cases  # noqa: E402
try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
PEER = os.path.join(HERE, "..", "compare_tokenizers.lua")


def escaped(text):
    return "".join(c if c >= " " and c not in "\\\x7f" else "\\%02x" % ord(c) for c in text)


def result(t, text, pair):
    """ids, byte offsets, type ids and the decoded text with and without special tokens, as one line"""
    e = t.encode(text, pair) if pair is not None else t.encode(text)
    byte_offsets = []
    for one in (text, pair or ""):
        at, starts = 0, []
        for c in one:
            starts.append(at)
            at += len(c.encode())
        byte_offsets.append(starts + [at])
    spans = []
    for (start, end), which, special in zip(e.offsets, e.sequence_ids, e.special_tokens_mask):
        starts = byte_offsets[1 if which == 1 and not special else 0]
        spans.append("%d:%d" % (starts[start], starts[end]))
    return "\t".join([" ".join(map(str, e.ids)), " ".join(spans), " ".join(map(str, e.type_ids)),
                      escaped(t.decode(e.ids, skip_special_tokens=False)), escaped(t.decode(e.ids))])


def strings(seed, count):
    rng = random.Random(seed)
    for i in range(count):
        yield cases.text(rng), cases.text(rng) if i % 8 == 7 else None


def characters():
    """Texts of all characters that have a meaning, but private ones: in a row, and within words."""
    all = [chr(c) for c in range(1, 0xe0200) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    for i in range(0, len(all), 12):
        row = all[i:i + 12]
        yield "".join(row) + " a" + "b 1".join(row), None


def write_golden():
    out = {}
    for name, t in cases.make(330).items():
        tests = [[a.replace("\0", ""), b and b.replace("\0", "")] for a, b in strings(name, 24)]
        out[name] = {"file": t.to_str(), "cases": [{"text": a, "pair": b, "result": result(t, a, b)} for a, b in tests]}
        for case in out[name]["cases"]:
            if case["pair"] is None:
                del case["pair"]
    with open(os.path.join(ROOT, "spec", "golden", "tokenizers.json"), "w") as f:
        json.dump(out, f, ensure_ascii=False, separators=(",", ":"))


def write_strings(path, tests):
    with open(path, "wb") as f:
        for a, b in tests:
            for one in (a, b):
                data = b"" if one is None else one.encode()
                f.write(b"%d\n" % (-1 if one is None else len(data)) + data)


def chosen(made):
    return {name: t for name, t in made.items() if not options.only or name in options.only}


def compare(folder, count):
    made, wrong = chosen(cases.make()), 0
    tests = list(characters() if options.characters else strings(5, count))
    write_strings(os.path.join(folder, "strings"), tests)
    for name, t in made.items():
        path = os.path.join(folder, name + ".json")
        t.save(path)
        peer = subprocess.Popen(["luajit", PEER, path, os.path.join(folder, "strings")], stdout=subprocess.PIPE)
        differ = 0
        for a, b in tests:
            want, got = result(t, a, b), peer.stdout.readline().decode().rstrip("\n")
            if want != got:
                differ += 1
                if differ <= 2:
                    print("%s: %r %r\n  there: %r\n  here:  %r" % (name, a, b, want, got))
        peer.wait()
        wrong += differ
        print("%-14s %d of %d differ" % (name, differ, len(tests)), flush=True)
    return wrong


def speed(folder):
    """One text in lines of about 200 bytes, each by itself, best of five; interleaved."""
    made = chosen(cases.make(4000))
    rng = random.Random(2)
    lines = [" ".join(rng.choice(cases.WORDS) + rng.choice(cases.WORDS) * (rng.random() < 0.3) for _ in range(30))
             for _ in range(5000)]
    size = sum(len(line.encode()) for line in lines)
    write_strings(os.path.join(folder, "strings"), [(line, None) for line in lines])
    for name, t in made.items():
        path = os.path.join(folder, name + ".json")
        t.save(path)
        there, here = 1e9, 1e9
        for _ in range(5):
            start = time.process_time()
            for line in lines:
                t.encode(line)
            there = min(there, time.process_time() - start)
            out = subprocess.run(["luajit", PEER, path, os.path.join(folder, "strings"), "--time"], stdout=subprocess.PIPE, check=True)
            here = min(here, float(out.stdout))
        print("%-14s tokenizers %6.2f MB/s, here %6.2f MB/s: %.2f times as fast" % (
            name, size / there / 1e6, size / here / 1e6, there / here), flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("--compare", type=int, default=0)
parser.add_argument("--characters", action="store_true", help="compare all characters of Unicode")
parser.add_argument("--speed", action="store_true")
parser.add_argument("--only", nargs="*", help="names of tokenizers, for --compare and --speed")
options = parser.parse_args()
with tempfile.TemporaryDirectory() as folder:
    if options.compare or options.characters:
        sys.exit(compare(folder, options.compare) > 0)
    elif options.speed:
        speed(folder)
    else:
        write_golden()
