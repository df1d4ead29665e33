-- Luminary's side of golden/gen_tokenizers.py: a line for each string of a file, or the time that they take.
--
--   compare_tokenizers.lua TOKENIZER.json STRINGS [--time]
local core = require "luminary.core"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

local tokenizer = require("luminary.text.tokenizer_json").read(read(arg[1]), arg[1])
local all, at, list = read(arg[2]), 1, {}
while at <= #all do
  local size, from = all:match("^(%-?%d+)\n()", at)
  size = tonumber(size)
  list[#list + 1] = size >= 0 and all:sub(from, from + size - 1)
  at = from + math.max(size, 0)
end

if arg[3] then
  local start = os.clock()
  for i = 1, #list, 2 do core.tokenizer_encode(tokenizer, list[i], nil, true, -1, 0, false, 1) end
  print(os.clock() - start)
  return
end

local function escaped(text)
  return (text:gsub("[%z\1-\31\127\\]", function(c) return ("\\%02x"):format(c:byte()) end))
end

for i = 1, #list, 2 do
  local ids, offsets, types =
    core.tokenizer_encode(tokenizer, list[i], list[i + 1] or nil, true, -1, 0, false, 0)
  local spans = {}
  for k, span in ipairs(offsets:totable()) do spans[k] = ("%d:%d"):format(span[1] - 1, span[2]) end
  io.write(table.concat({
    table.concat(ids:totable(), " "), table.concat(spans, " "), table.concat(types:totable(), " "),
    escaped(core.tokenizer_decode(tokenizer, ids, false, 0)), escaped(core.tokenizer_decode(tokenizer, ids, true, 0)),
  }, "\t"), "\n")
end
