"""Golden renderings of chat templates by transformers.

    gen_chat_templates.py                  writes spec/golden/chat_templates.json
    gen_chat_templates.py --show T C       prints the rendering of template T for conversation C, from 1

For each template of spec/text/chat/templates.txt, the CRC-32 of the text of each conversation of conversations.jsonl;
of "error" where transformers raises one. The date is 2025-03-04."""
import datetime, json, os, sys, zlib
import transformers.utils.chat_template_utils as utils

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

class Date(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 4, 5, 6, 7)

utils.datetime = Date

def read(name):
    return open(os.path.join(ROOT, "spec/text/chat", name), encoding="utf-8", newline="").read()

def templates():
    found = {}
    for line in read("templates.txt").splitlines(keepends=True):
        word = line[4:].strip()
        if line.startswith("### ") and word and all(c.islower() or c.isdigit() or c == "_" for c in word):
            name = word
            found[name] = ""
        else:
            found[name] += line
    return found

def rendered(template, conversation):
    given = {"tools": None, "documents": None, **TOKENS, **conversation}
    messages = utils._normalize_chat_messages if hasattr(utils, "_normalize_chat_messages") else (lambda m: m)
    conversations = [messages(given.pop("messages"))]
    return utils.render_jinja_template(conversations=conversations, chat_template=template, **given)[0][0]

conversations = [json.loads(line) for line in read("conversations.jsonl").splitlines()]
if "--show" in sys.argv:
    name, number = sys.argv[-2:]
    print(rendered(templates()[name], conversations[int(number) - 1]), end="")
    sys.exit()
out, errors = {}, 0
for name, template in templates().items():
    out[name] = []
    for conversation in conversations:
        try:
            text = rendered(template, conversation)
        except Exception:
            text, errors = "error", errors + 1
        out[name].append("%08x" % zlib.crc32(text.encode()))
with open(os.path.join(ROOT, "spec/golden/chat_templates.json"), "w") as f:
    f.write("{\n" + ",\n".join('"%s": %s' % (k, json.dumps(" ".join(v))) for k, v in out.items()) + "\n}\n")
print(len(out), "templates,", len(conversations), "conversations,", errors, "errors")
