"""Random outputs of generate's constraint for the schemas of the JSON Schema Test Suite, checked by jsonschema.

    check_schemas.py FOLDER [COUNT]     FOLDER: of the suite, such as tests/draft2020-12; COUNT outputs of each (20)

Prints how many schemas are supported and why others are refused; fails if an output is not valid."""
import collections, glob, json, os, re, subprocess, sys, tempfile
import jsonschema

folder, count = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "20"
draft = os.path.basename(os.path.normpath(folder)).replace("draft", "").replace("-", "")
validator = getattr(jsonschema, "Draft" + draft + "Validator")
schemas = []
for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
    for group in json.load(open(path, encoding="utf-8")):
        schemas.append((os.path.basename(path), group["description"], group["schema"]))
with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
    f.write("".join(json.dumps(schema, ensure_ascii=False) + "\n" for _, _, schema in schemas))
    f.flush()
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    lines = subprocess.run(["luajit", os.path.join(here, "random_json.lua"), f.name, count], check=True,
        capture_output=True).stdout.decode("utf-8").split("\n")[:-1]
refused, supported, outputs, wrong = collections.Counter(), set(), 0, 0
for line in lines:
    number, text = line.split("\t", 1)
    name, description, schema = schemas[int(number) - 1]
    if text.startswith("refused: "):
        refused[re.sub(r"^#\S* ?", "", text[9:])] += 1
        continue
    supported.add(number)
    outputs += 1
    try:
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))
    except Exception as problem:
        wrong += 1
        print("%s, %s: %s: %s" % (name, description, text, str(problem).split("\n")[0]))
for reason, n in refused.most_common(60):
    print("%4d  %s" % (n, reason))
print(len(schemas), "schemas,", len(supported), "supported,", outputs, "outputs,", wrong, "not valid")
sys.exit(wrong > 0)
