-- Mutated JSON lines.
local bytes = require "scripts.dev.fuzz.bytes"
local lm = require "luminary"
local damage, cut, pick, random = bytes.damage, bytes.cut, bytes.pick, math.random

local values = {
  "1", "-0.5e3", '"text"', '{"a": 1}', '{"a": {"b": [1, 2, {"c": null}]}}', "[]", "null", "true",
  '"\\u00e9\\ud83d\\ude00"',
  '"\\u0000"', '"\\ud800"', '{"a": 1, "a": 2}', "1e999", ("["):rep(50) .. ("]"):rep(50), ("["):rep(5000), '"\255"',
  "", "  ", '{"a" 1}', "{", '"open', "nan", "0x1", "\0", '{"text": "' .. ("long "):rep(200) .. '"}', "1 2",
}
local function change_jsonl()
  local lines = {}
  for i = 1, random(2, 8) do lines[i] = random(3) > 1 and ('{"a": %d, "b": "t%d"}'):format(i, i) or pick(values) end
  local text = table.concat(lines, pick { "\n", "\r\n" }) .. pick { "", "\n" }
  if random(10) == 1 then text = "\239\187\191" .. text end
  local kind = random(5)
  if kind == 1 then return damage(text) end
  if kind == 2 then return cut(text) end
  return text
end

local function load_jsonl(path)
  local opts = { on_error = pick { "raise", "skip" } }
  if random(2) == 1 then opts.null = false end
  if random(4) == 1 then opts.fields = { "a" } end
  local set = lm.data.JSONLinesDataset(path, opts)
  local samples = {}
  for i = 1, #set do samples[i] = { set:get(i) } end
  return samples
end

return {
  name = "JSON lines", share = 1, change = change_jsonl, load = load_jsonl,
  past = function(message) return tonumber(message:match "line (%d+)" or 0) > 1 end,
}
