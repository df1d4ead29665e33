--- Parses options of a command: `--name value`, `--name=value`, `--flag`; dashes and underscores are equivalent.
local flags = {}

local function whole(text, least, most)
  local number = tonumber(text)
  return number and number % 1 == 0 and number >= least and number <= most and number or nil
end

-- Each kind has a name for messages, and a function that returns the value of a text, or nil to refuse it.
local kinds = {
  text = {"a value", function(text) return text end},
  count = {"an integer of at least 1", function(text) return whole(text, 1, 2 ^ 31) end},
  natural = {"an integer of at least 0", function(text) return whole(text, 0, 2 ^ 31) end},
  number = {"a number of at least 0", function(text)
    local value = tonumber(text)
    return value and value >= 0 and value < math.huge and value or nil
  end},
  positive = {"a number above 0", function(text)
    local value = tonumber(text)
    return value and value > 0 and value < math.huge and value or nil
  end},
  port = {"a port from 0 to 65535", function(text) return whole(text, 0, 65535) end},
}

local function unknown(given, rows)
  local names = {}
  for name, row in pairs(rows) do
    if not row.refuse then names[#names + 1] = name end
  end
  table.sort(names)
  local loaded, core = pcall(require, "luminary.core") -- the doctor runs without the core, too
  local near = loaded and core.nearest(given:gsub("^%-+", ""), names)
  return ("unrecognized argument '%s'%s"):format(given, near and "; did you mean '--" .. near .. "'?" or "")
end

-- Returns the row of "--name", and its name.
local function find(given, rows)
  local name = given:gsub("^%-+", ""):gsub("_", "-")
  local row = rows[name]
  while row and row.same do name, row = row.same, rows[row.same] end
  return row, name
end

--- Parses args from `first` on, up to the first argument that is no option. `rows` by name: {"kind" [, default]},
--- {"flag"}, which is false by default, {same = "other name"}, {refuse = "the reason and the remedy"}. Returns the
--- values by name, the position of the first remaining argument and the set of given names, or nil and the error. The
--- last of repeated options counts. words: an optional list that gets arguments that are no options, in any position.
function flags.parse(args, first, rows, words)
  local values, seen = {}, {}
  for name, row in pairs(rows) do
    values[name] = row[2]
    if row[1] == "flag" then values[name] = false end -- nil would be read as on, as in {enabled = nil}
  end
  local i = first
  while args[i] do
    while words and args[i] and not args[i]:match "^%-." do
      words[#words + 1], i = args[i], i + 1
    end
    if not args[i] or not args[i]:match "^%-." then break end
    if args[i] == "--" then return values, i + 1, seen end
    local given, value = args[i]:match("^(%-%-[^=]+)=(.*)$")
    given = given or args[i]
    local row, name = find(given, rows)
    if not row then return nil, unknown(given, rows) end
    if row.refuse then return nil, given .. ": " .. row.refuse end
    seen[name] = true
    if row[1] == "flag" then
      if value then return nil, ("%s takes no value, got '%s'"):format(given, value) end
      values[name] = true
    else
      if not value then
        i = i + 1
        value = args[i]
      end
      if not value then return nil, given .. " requires a value" end
      values[name] = kinds[row[1]][2](value)
      if values[name] == nil then
        return nil, ("%s must be %s, got '%s'"):format(given, kinds[row[1]][1], value)
      end
    end
    i = i + 1
  end
  return values, i, seen
end

return flags
