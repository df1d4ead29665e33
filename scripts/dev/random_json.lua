-- Luminary's side of golden/check_schemas.py: prints random outputs of generate's constraint for JSON schemas.
--
--   luajit scripts/dev/random_json.lua SCHEMAS COUNT    SCHEMAS: a file, a schema a line
--
-- Each line printed is a schema's number, then an output, or "refused: " and the message.
local constraint = require "luminary.text.constraint"
require "luminary"
local matcher = require "luminary.text.constraint.matcher"
local path, count = arg[1], tonumber(arg[2])

local texts = {}
for byte = 0, 255 do texts[byte + 1] = string.char(byte) end
for text in ('": ": "," }, true null false 1 12 "a" foo bar baz foo" bar" é {} [] "} ]}'):gmatch "%S+" do
  texts[#texts + 1] = text
end
local tree, END = matcher.tree(texts, #texts), #texts + 1

-- Returns a random output, which ends soon after `patience` tokens; nil for one that grows too long.
local function output(m, patience)
  local state, out = m.start, {}
  for step = 1, 3000 do
    if state.ends then return table.concat(out) end
    local allowed = m:mask(tree, state, END, {[END] = true}):logical_not():nonzero():view(-1):totable()
    if #allowed == 0 then return table.concat(out) .. " (dead end)" end
    local token = allowed[math.random(#allowed)]
    for _ = 1, step > patience and 80 or 0 do -- prefers what ends the text
      if token == END or texts[token]:find '^["%]}]' then break end
      token = allowed[math.random(#allowed)]
    end
    if token == END then return table.concat(out) end
    out[#out + 1] = texts[token]
    state = m:after(state, texts[token])
  end
end

math.randomseed(1)
local number = 0
for schema in io.lines(path) do
  number = number + 1
  local ok, m = pcall(constraint.matcher, "schema", {json_schema = schema})
  if not ok then print(number, "refused: " .. m:gsub("^.-constraint: ", "")) end
  for i = 1, ok and count or 0 do
    local text = output(m, i * 3)
    if text then print(number, (text:gsub("\n", " "))) end
  end
end
