-- JSONLinesDataset.
local lm = require "luminary"
local sets = require "spec.support.sets"
local data = lm.data
local write, says, same_with_workers, skipped_by_workers =
  sets.write, sets.says, sets.same_with_workers, sets.skipped_by_workers
teardown(sets.remove)

describe("a JSONLinesDataset", function()
  local lines = '\239\187\191{"a": 1, "s": "x"}\n\n  {"a": [1, 2]}\r\n[3]\n \t\n{"a": 4}'

  it("gives the value of each line", function()
    local set = data.JSONLinesDataset(write("a.jsonl", lines))
    assert.equal(4, #set)
    assert.same({{a = 1, s = "x"}, {a = {1, 2}}, {3}, {a = 4}}, {set:get(1), set:get(2), set:get(3), set:get(-1)})
    local rows = {}
    for i = 1, 9 do rows[i] = ('{"text": "t%d", "label": %d}'):format(i, i) end
    local path = write("b.jsonl", table.concat(rows, "\n") .. "\n")
    local fields = data.JSONLinesDataset(path, {fields = {"label", "text"}})
    assert.same({9, "t9"}, {fields:get(9)})
    same_with_workers(fields)
    same_with_workers(data.JSONLinesDataset(path, {transform = function(row) return row.label * 2 end}))
    assert.equal(0, #data.JSONLinesDataset(write("c.jsonl", "\n \n")))
    local nulls = write("d.jsonl", '{"a": null}\n')
    assert.same({a = false}, data.JSONLinesDataset(nulls, {null = false}):get(1))
    local beside = data.JSONLinesDataset(write("n.jsonl", '{"a": 1, "b": null, "c": [{"d": null}]}\n'),
      {fields = {"a"}})
    assert.equal(1, beside:get(1)) -- a key that no sample has is not reserved
    beside.fields = {"a", "c"}
    says("line 1: null in field 'c' has no value in Lua; pass {null = false} to read it as false", beside.get, beside,
      1)
    says("line 1: null has no value in Lua; pass {null = false} to read it as false", function()
      data.JSONLinesDataset(nulls):get(1)
    end)
  end)

  it("finds lines in large files, read in order or not", function()
    local rows = {}
    math.randomseed(8)
    for i = 1, 6000 do
      local length = i % 1500 == 0 and 300000 or math.random(0, 200)
      rows[i] = (" "):rep(math.random(0, 3)) .. ('{"i": %d, "s": "%s"}'):format(i, ("x"):rep(length))
        .. ("\n"):rep(math.random(0, 2)) .. (" "):rep(math.random(0, 2))
    end
    local set = data.JSONLinesDataset(write("large.jsonl", table.concat(rows, "\n")))
    assert.equal(6000, #set)
    for i = 1, 6000 do assert(set:get(i).i == i) end
    for i = 1, 6000 do
      local k = i * 7919 % 6000 + 1
      local row = set:get(k)
      assert(row.i == k and row.s == rows[k]:match '"s": "(x*)"')
    end
  end)

  it("names the line of what is wrong, or leaves it out and counts", function()
    local path = write("e.jsonl", '{"a": 1}\n\n{"a": }\n{"b": 1}\n7\n{"a": null}\n{"a": 2}\n')
    local set = data.JSONLinesDataset(path, {fields = {"a"}})
    says(path .. "': line 3: malformed JSON at byte 7", set.get, set, 2)
    says(path .. "': line 4: it has no field 'a'", set.get, set, 3)
    says(path .. "': line 5: expected a JSON object, got a number", set.get, set, 4)
    says(path .. "': line 6: null in field 'a' has no value in Lua; pass {null = false}", set.get, set, 5)
    local tolerant = data.JSONLinesDataset(path, {fields = {"a"}, on_error = "skip"})
    assert.same({1, 2, 2}, {tolerant:get(1), tolerant:get(2), tolerant:get(6)})
    assert.equal(4, tolerant:skipped())
    assert.same({10, 10}, skipped_by_workers(tolerant)) -- 4 + 3 + 2 + 1
    write("e.jsonl", "{}")
    says(path .. "': changed while it was read: it had", set.get, set, 1)
    local deep = write("deep.jsonl", ("["):rep(5000) .. '\n["\\"[[", [1 [\n')
    local nested = data.JSONLinesDataset(deep)
    says(deep .. "': line 1: malformed JSON at byte 1001: nested more than 1000 deep", nested.get, nested, 1)
    says(deep .. "': line 2: malformed JSON at byte 13", nested.get, nested, 2)
    assert(os.execute(("gzip -c %s >%s.gz"):format(path, path)) == 0)
    says("gunzip it first", data.JSONLinesDataset, path .. ".gz")
  end)
end)
