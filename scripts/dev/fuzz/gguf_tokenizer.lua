-- GGUF files of tokenizers (spec/support/gguf_vocabularies.lua) whose metadata is changed before it is written, or
-- whose bytes are; what loads encodes and decodes as tokenizer.lua's.
local bytes = require "scripts.dev.fuzz.bytes"
local lists = require "luminary.base.lists"
local gguf = require "spec.support.gguf"
local tokenizer = require "scripts.dev.fuzz.tokenizer"
local vocabularies = require "spec.support.gguf_vocabularies"
local pick, random, damage = bytes.pick, math.random, bytes.damage

local made = {}
for name, pre in lists.sorted_pairs {gpt2 = "gpt-2", llama3 = "llama-bpe", llama2 = false} do
  made[#made + 1] = function() return vocabularies(name, pre or nil) end
end

local strange = {
  "", "x", "\0", "\255", "\228\189", "▁", ("a"):rep(300), "llama", "gpt2", "gpt-2", "qwen2", "default", true, false, 0,
  1, 2, 3, 6, 99, 2 ^ 32 - 1,
}
local scores = {0, -1, 0.5, 1e30, 0 / 0, 1 / 0, -1 / 0}
local SCORES = "tokenizer.ggml.scores"

local function change_list(list, values)
  for _ = 1, random(4) do
    local i, kind = random(#list + 1), random(5)
    if kind == 1 then
      table.remove(list, i)
    elseif kind == 2 then
      list[i] = list[random(#list)]
    elseif kind == 3 and type(list[i]) == "string" then
      list[i] = damage(list[i])
    else
      list[i] = pick(values)
    end
  end
  local kind = type(list[1]) -- a list has entries of one kind
  for i = #list, 1, -1 do
    if type(list[i]) ~= kind then table.remove(list, i) end
  end
  return list[1] ~= nil and list or nil
end

local function change()
  local metadata, names = pick(made)(), {}
  for name in pairs(metadata) do names[#names + 1] = name end
  table.sort(names)
  for _ = 1, random(0, 3) do
    local name = pick(names)
    local value, kind = metadata[name], random(6)
    if kind == 1 then
      metadata[name] = nil
    elseif kind <= 4 and type(value) == "table" then
      metadata[name] = change_list(value, name == SCORES and scores or strange)
    else
      metadata[name] = pick(strange)
    end
  end
  local text = gguf(metadata, {[SCORES] = true})
  if random(4) == 1 then text = damage(text, random(4) == 1 and 1 or 25) end
  local _, last = text:find(SCORES, 1, true)
  if last and random(4) == 1 then text = bytes.forge(text, last + 17) end -- behind two types and a length
  return random(40) == 1 and text:sub(1, random(#text)) or text, "x.gguf"
end

return {
  name = "GGUF tokenizer", change = change, load = tokenizer.load,
  past = function(message) return not message:find "header" and not message:find "version" end,
}
