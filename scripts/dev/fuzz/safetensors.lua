-- Mutated safetensors: files of lm.save whose header, description or data were changed.
local bytes = require "scripts.dev.fuzz.bytes"
local lm = require "luminary"
local temp = require "spec.support.temp"
local little_endian, damage, cut, replace_one, pick, random =
  bytes.little_endian, bytes.damage, bytes.cut, bytes.replace_one, bytes.pick, math.random

-- Returns a file as its header's text and its data.
local function take_apart(text)
  local length = 0
  for i = 8, 1, -1 do length = length * 256 + text:byte(i) end
  return text:sub(9, 8 + length), text:sub(9 + length)
end

local function put_together(header, data) return little_endian(#header, 8) .. header .. data end

local numbers = {
  "0", "1", "-1", "2", "3", "4", "7", "8", "0.5", "1e3", "1e400", "-0", "255", "65536", "2147483647", "2147483648",
  "4294967295", "4294967296", "9007199254740991", "9007199254740993", "9223372036854775807", "9223372036854775808",
  "18446744073709551615", "18446744073709551616", "99999999999999999999999999", "null", "true", '"8"', "[]", "{}",
}
local dtypes = {
  "BOOL", "U8", "I8", "I16", "U16", "I32", "I64", "F16", "BF16", "F32", "F64", "F8_E4M3", "", "f32", "\\u0046",
}
local words = {
  "tensor", "list", "table", "integers", "number", "integer", "bytes", "dtype", "shape", "data_offsets", "luminary", "",
  "__metadata__", "x", "nan", "inf", "0", "1", "\\u0000", "\\ud83d\\ude00", "\\ud800", "format",
}
local lists = { "[]", "[1]", "[0]", "[2,2]", "[0,0]", "[0,8]", "{}", "3", "[[1]]" }

-- Changes after which a header means something else, or nothing.
local wrong_changes = {
  function(h) return replace_one(h, "%-?%d+", pick(numbers)) end,
  function(h)
    return replace_one(h, "%d+", function(n) return ("%.0f"):format(tonumber(n) + random(-2, 2)) end)
  end,
  function(h) return replace_one(h, '"dtype":"%w+"', '"dtype":"' .. pick(dtypes) .. '"') end,
  function(h) return replace_one(h, '"[%w_]*"', '"' .. pick(words) .. '"') end,
  function(h) return replace_one(h, "%b[]", pick(lists)) end,
  function(h) return replace_one(h, "%d+,%d+", function(two) return (two:gsub("(%d+),(%d+)", "%2,%1")) end) end,
  function(h) return replace_one(h, '"[^"]*":{"dtype"[^}]*}', function(e) return e .. "," .. e end) end, -- twice
  function(h) return replace_one(h, ',"[^"]*":{"dtype"[^}]*}', "") end, -- an entry less
  function(h) return replace_one(h, '"shape":%b[],', "") end,
  function(h) return replace_one(h, "{", '{"more":' .. pick(numbers) .. ",") end,
  function(h) return replace_one(h, "}", pick { ',"shape":[1]}', ',"x":1}', "}}", "} " }) end,
}

-- Changes after which it still holds.
local same_width = { F32 = "I32", I32 = "F32", F64 = "I64", I64 = "F64", F16 = "BF16", BF16 = "F16", U8 = "BOOL" }
local right_changes = {
  function(h)
    return replace_one(h, '"dtype":"%w+"', function(d)
      local name = d:match('"(%w+)"$')
      return '"dtype":"' .. (same_width[name] or name) .. '"'
    end)
  end,
  function(h) return replace_one(h, '"shape":%[', function(open) return open .. ("1,"):rep(random(3)) .. "1," end) end,
  function(h)
    return replace_one(h, '"shape":%[%d+,%d+%]', function(s) return (s:gsub("(%d+),(%d+)", "%2,%1")) end)
  end,
  function(h)
    return replace_one(h, '"[^"]*":{"dtype"', ('"renamed %d":{"dtype"'):format(random(1e9)))
  end,
  function(h)
    return replace_one(h, '"[%a]+":', function(w) return ('"\\u%04x%s'):format(w:byte(2), w:sub(3)) end)
  end,
  function(h)
    return replace_one(h, '"dtype":"%w+","shape":%b[]', function(f) return (f:gsub("(.-),(.*)", "%2,%1")) end)
  end,
  function(h) return h .. (" "):rep(random(0, 20)) end,
  function(h) return replace_one(h, ",\"", ', \n\t"') end,
}

-- Changes of the description of a checkpoint, which is JSON within a string.
local description_changes = {
  function(h) return replace_one(h, '\\"[%w_]*\\"', '\\"' .. pick(words) .. '\\"') end,
  function(h) return replace_one(h, '\\"[%w_]*\\":', '\\"' .. pick(words) .. '\\":') end,
  function(h)
    return replace_one(h, '\\":%-?[%d.]+', function() return '\\":' .. pick(numbers):gsub('"', '\\"') end)
  end,
  function(h) return replace_one(h, '\\":[%[{]+', '\\":' .. pick { "[", "{", "[[", "{}", "3" }) end,
}

local function change_safetensors(text)
  local kind = random(12)
  if kind == 1 then return damage(text) end
  if kind == 2 then return cut(text) end
  local header, data = take_apart(text)
  if kind == 3 then return put_together(damage(header), data) end
  if kind == 4 then return put_together(header, pick { cut(data), data .. data, data .. "\0" }) end
  if kind == 5 then
    for _ = 1, random(2) do header = pick(wrong_changes)(header) end
  else
    if kind <= 8 and header:find("__metadata__", 1, true) then
      for _ = 1, random(2) do header = pick(description_changes)(header) end
    else
      for _ = 1, random(2) do header = pick(right_changes)(header) end
    end
    if kind == 9 then data = damage(data) end
  end
  return put_together(header, data)
end

-- ---- what is mutated

local function saved(value)
  local folder = temp.folder()
  lm.save(folder .. "/valid", value)
  local text = temp.read(folder .. "/valid")
  temp.remove(folder)
  return text
end

lm.manual_seed(1)
local checkpoints = {
  saved { weight = lm.rand { 2, 3 }, bias = lm.rand { 3 } },
  saved {
    f64 = lm.rand({ 2 }, { dtype = "float64" }), i64 = lm.arange(3, { dtype = "int64" }),
    flags = lm.tensor({ 1, 0, 1 }):bool(), half = lm.rand({ 2, 2 }):half(), bytes = lm.ones({ 5 }, { dtype = "uint8" }),
    scalar = lm.ones {}, none = lm.ones { 0, 4 },
  },
  saved {
    model = { ["0.weight"] = lm.rand { 2, 2 } }, state = { [1] = { step = 3, exp_avg = lm.rand { 2 } }, [7] = "x" },
    list = { 1, 2.5, { "text", true } }, odd = { 0 / 0, math.huge, 5LL, "\255" },
  },
  saved { large = lm.rand { 3000 }, small = lm.rand { 1 } },
  saved { 1, "two", {} },
}

return {
  name = "safetensors", share = 2, change = function() return change_safetensors(pick(checkpoints)) end,
  load = function(path) return lm.load(path) end,
  past = function(message)
    return message:find "malformed description" or message:find "malformed safetensors data"
  end,
}
