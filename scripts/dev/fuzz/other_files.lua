-- Mutated files of other programs (spec/golden/_files.safetensors): NumPy's, torch.save's, GGUF and Torch7's. What is
-- damaged within a zip archive is given the checksum of what it became, so that readers see it.
local bytes = require "scripts.dev.fuzz.bytes"
local core = require "luminary.core"
local ffi = require "ffi"
local lm = require "luminary"
local damage, cut, pick, random, replace, little_endian =
  bytes.damage, bytes.cut, bytes.pick, math.random, bytes.replace, bytes.little_endian

local golden = core.safetensors_load "spec/golden/_files.safetensors"

local function texts(pattern)
  local names, out = {}, {}
  for name in pairs(golden) do
    if name:find(pattern) then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    out[i] = ffi.string(ffi.cast("const char *", golden[name]:data_ptr()), golden[name]:numel())
  end
  return out
end

local function number(text, at, n)
  local value = 0
  for i = at + n - 1, at, -1 do value = value * 256 + text:byte(i) end
  return value
end

-- One stored entry of an archive changed, with a checksum that holds.
local function change_stored(text)
  local places, from = {}, 1
  while true do
    local at = text:find("PK\1\2", from, true)
    if not at then break end
    places[#places + 1], from = at, at + 4
  end
  if #places == 0 then return damage(text) end
  local entry = places[random(2) == 1 and 1 or random(#places)]
  local at, size = number(text, entry + 42, 4) + 1, number(text, entry + 24, 4)
  local data = at + 30 + number(text, at + 26, 2) + number(text, at + 28, 2)
  local changed = damage(text:sub(data, data + size - 1))
  changed = (changed .. ("\0"):rep(size)):sub(1, size)
  text = replace(text, data, data + size - 1, changed)
  local sum = little_endian(bytes.crc32(changed), 4)
  return replace(replace(text, entry + 16, entry + 19, sum), at + 14, at + 17, sum)
end

-- What an earlier change broke is damaged anyhow.
local function change_entry(text)
  local ok, changed = pcall(change_stored, text)
  return ok and changed or damage(text)
end

-- Nothing is read of a tensor that repeats its few elements without end.
local function load(path)
  local value, seen, kept = lm.load(path, { mmap = random(2) == 1 or nil }), {}, {}
  local function look(v)
    if lm.is_tensor(v) then
      if v:numel() < 1e6 then kept[#kept + 1] = v end
    elseif type(v) == "table" and not seen[v] then
      seen[v] = true
      for _, each in pairs(v) do look(each) end
    end
  end
  look(value)
  return kept
end

local function format(name, suffix, pattern, changes)
  local all = texts(pattern)
  return {
    name = name, share = 1, load = load, past = function(message) return not message:find "no .npy file" end,
    change = function()
      local text = pick(all)
      for _ = 1, random(2) do text = pick(changes)(text) end
      return text, "case." .. suffix
    end,
  }
end

local function head(n) return function(text) return damage(text, 1, n) end end
local function data(from) return function(text) return damage(text, from) end end
local words = { "<", ">", "|", "f4", "i8", "b1", "u4", "True", "False", "(2,)", "()", "(1, 6)", "0", "24", "'", "}" }
local places = { "[<>|]", "[bfiu]%d", "True", "False", "%b()", "%d+", "'", ",", "}" }
local function word(text) return bytes.replace_one(text, pick(places), pick(words)) end

return {
  format("npy", "npy", "%.npy$", { data(129), data(129), word, word, head(100), cut }),
  format("npz", "npz", "ed%.npz$", { damage, change_entry, cut }),
  format("torch", "pt", "^[%w ]+%.pt$", { damage, change_entry, change_entry, cut }),
  format("GGUF", "gguf", "%.gguf$", { head(1200), head(1200), damage, cut }),
  format("t7", "t7", "%.t7$", { damage, damage, data(600), cut, head(300) }),
}
