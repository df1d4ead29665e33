--- lm.repr(value [, max_entries [, width]]): Returns a readable text of any value.
-- src/tensor/print.c prints a tensor's digits; lm.set_printoptions (tensor/derived_functions.lua) sets how many.
local core = require "luminary.core"
local help = require "luminary.help"
local options = require "luminary.base.options"
local truncate_text = require "luminary.base.truncate_text"

local function is_name(key) return type(key) == "string" and key:match("^[%a_][%w_]*$") ~= nil end

-- Orders keys: numbers by value, then all others by text.
local function before(a, b)
  local na, nb = type(a) == "number", type(b) == "number"
  if na and nb then return a < b end
  if na ~= nb then return na end
  return tostring(a) < tostring(b)
end

local function indent(text, by) return (text:gsub("\n", "\n" .. by)) end

-- Returns a character as Lua's escapes if a terminal must not get it.
local function escaped(character)
  if core.printable(character) == character then return character end
  return (character:gsub(".", function(byte) return ("\\%d"):format(byte:byte()) end))
end

local show
local DEEPEST = 40 -- deeper tables are "{…}", and so is a table within itself

-- Returns a table's text. state: the tables around this one as keys; max_entries, the limit for each table; left, the
-- limit for all tables together; width, the columns of a line.
local function show_table(t, state, margin)
  local mt = require("debug").getmetatable(t)
  if type(mt) == "table" and mt.__tostring then return indent(tostring(t), margin) end
  local library = type(mt) == "table" and rawget(mt, "__library")
  if library then return margin == "" and help.overview(t) or ("library %s"):format(library) end
  if state[t] or #margin > 2 * DEEPEST then return "{…}" end
  state[t] = true
  local inner, parts, wide = margin .. "  ", {}, false
  local n = #t
  local keys = {}
  for key in pairs(t) do
    if not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then keys[#keys + 1] = key end
  end
  table.sort(keys, before)
  local room = math.max(math.min(state.max_entries, state.left), 0)
  local cut = n + #keys > room
  for i = 1, n + #keys do
    if i > room then break end
    state.left = state.left - 1
    local key = keys[i - n]
    local name = i > n and (is_name(key) and key or "[" .. show(key, state, inner) .. "]") .. " = " or ""
    local value = t[i > n and key or i]
    parts[i] = name .. show(value, state, core.is_tensor(value) and inner .. (" "):rep(#name) or inner)
  end
  if cut then parts[#parts + 1] = ("… (%d more)"):format(n + #keys - room) end
  state[t] = nil
  local width = 0
  for _, part in ipairs(parts) do
    width = width + #part + 2
    wide = wide or part:find("\n", 1, true) ~= nil
  end
  if not wide and #margin + width <= state.width then return "{" .. table.concat(parts, ", ") .. "}" end
  return "{\n" .. inner .. table.concat(parts, ",\n" .. inner) .. (cut and "" or ",") .. "\n" .. margin .. "}"
end

function show(value, state, margin)
  if type(value) == "string" then
    local text = state.max_entries < 1 / 0 and truncate_text(value, 1000) or value
    return ("%q"):format(text):gsub("\\\n", "\\n"):gsub("[\194\226\239][\128-\191]+", escaped) .. ""
  end
  if type(value) == "table" then return show_table(value, state, margin) end
  if core.is_tensor(value) then return indent(tostring(value), margin) end
  return indent(tostring(value), margin)
end

return options.exact("repr", function(value, max_entries, width)
  if max_entries ~= nil then options.arg("repr", "max_entries", max_entries, "count") end
  if width ~= nil then options.arg("repr", "width", width, "count") end
  local most = max_entries or 1 / 0
  return (show(value, {max_entries = most, left = 3 * most, width = width or 100}, ""))
end)
