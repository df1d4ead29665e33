-- Mutated files of other programs (_files and _pickles of spec/golden): NumPy's, torch.save's, GGUF and Torch7's, and
-- the index of safetensors in shards. What is damaged within a zip archive is given the checksum of what it became, so
-- that readers see it.
local bytes = require "scripts.dev.fuzz.bytes"
local core = require "luminary.core"
local ffi = require "ffi"
local lm = require "luminary"
local temp = require "spec.support.temp"
local damage, flip, cut, forge, pick, random, replace, little_endian =
  bytes.damage, bytes.flip, bytes.cut, bytes.forge, bytes.pick, math.random, bytes.replace, bytes.little_endian

local golden = require("spec.support.golden").load "_files"
for name, t in pairs(require("spec.support.golden").load "_pickles") do golden[name] = t end

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

-- Returns the position of the n-th `what` in a text, from 1.
local function place_of(text, what, n)
  local at = 0
  for _ = 1, n do at = assert(text:find(what, at + 1, true)) end
  return at
end

-- Codes that a pickle's machine does not expect.
local pickle_codes = {
  "0", "1", "2", "(", "N", "R", "b", "t", "l", "d", "}", "]", ")", "a", "e", "s", "u", "Q", ".", "\133", "\134", "\135",
  "\136", "\137", "\143", "\144", "\145", "h\0", "h\1", "q\0", "j\0\0\0\0", "r\1\0\0\0", "\148", "K\0", "K\255",
  "M\255\255", "J\255\255\255\255", "J\255\255\255\127", "\138\1\255", "\138\8\255\255\255\255\255\255\255\127",
  "G\127\240\0\0\0\0\0\0", "X\0\0\0\0", "X\255\255\255\127", "\140\1a", "\147", "\129", "\146", "i", "o",
  "cos\nsystem\n", "ccollections\nOrderedDict\n", "ctorch\nFloatStorage\n", "ctorch\nBoolStorage\n",
  "ctorch\nComplexFloatStorage\n", "ctorch._utils\n_rebuild_tensor_v2\n", "ctorch\nSize\n", "cbuiltins\nset\n",
  "ctorch._utils\n_rebuild_tensor_v3\n", "ctorch._utils\n_rebuild_sparse_tensor\n", "ctorch\nfloat8_e4m3fn\n",
  "ctorch._utils\n_rebuild_qtensor\n", "ctorch\nQInt8Storage\n", "ctorch._tensor\n_rebuild_from_type_v2\n",
  "ctorch._utils\n_rebuild_parameter\n", "cnumpy.core.multiarray\n_reconstruct\n", "cnumpy\ndtype\n",
  "cnumpy\nndarray\n", "cnumpy.core.multiarray\nscalar\n", "ctypes\nSimpleNamespace\n", "cdatetime\ndatetime\n",
  "ccollections\nCounter\n", "cpathlib\nPosixPath\n", "ctorch.serialization\n_get_layout\n", "ctorch\nuint64\n",
}
local function forge_float(text)
  return bytes.replace_one(text, "G........", function() return "G" .. bytes.forged(8):reverse() end)
end
local function change_pickle(text)
  if random(4) == 1 then return forge_float(text) end
  for _ = 1, random(3) do
    local code, at = pick(pickle_codes), random(#text)
    text = replace(text, at, math.min(at + #code - 1, #text), code)
  end
  return text
end

-- Changes one stored entry of an archive, with a matching checksum.
local function change_stored(text)
  local offsets, from = {}, 1
  while true do
    local at = text:find("PK\1\2", from, true)
    if not at then break end
    offsets[#offsets + 1], from = at, at + 4
  end
  if #offsets == 0 then return damage(text) end
  local entry = offsets[random(2) == 1 and 1 or random(#offsets)]
  local at, size = number(text, entry + 42, 4) + 1, number(text, entry + 24, 4)
  local data = at + 30 + number(text, at + 26, 2) + number(text, at + 28, 2)
  assert(data + size - 1 <= #text)
  local change = entry == offsets[1] and random(2) == 1 and change_pickle or pick {damage, flip}
  local changed = change(text:sub(data, data + size - 1))
  changed = (changed .. ("\0"):rep(size)):sub(1, size)
  text = replace(text, data, data + size - 1, changed)
  local sum = little_endian(bytes.crc32(changed), 4)
  return replace(replace(text, entry + 16, entry + 19, sum), at + 14, at + 17, sum)
end

-- Changes an entry of an archive; a text that an earlier change broke is damaged anywhere.
local function change_entry(text, from)
  if not text:find "^PK" then return damage(text, from) end
  local ok, changed = pcall(change_stored, text)
  return ok and changed or damage(text)
end

core.warn = function() end -- ignores warnings of parts that are left out

-- Returns true for a large tensor of luminary.torch7, whose text has each element.
local function is_large(v)
  local ok, n = pcall(function() return v:nElement() end)
  return ok and n >= 1e6
end

-- Returns the tensors in a value, and looks at all others, which crashes if one is not what it seems. Nothing is read
-- of a tensor that repeats its few elements without end.
local function tensors_in(value)
  local seen, kept = {}, {}
  local function look(v)
    if lm.is_tensor(v) then
      if v:numel() < 1e6 then kept[#kept + 1] = v end
    elseif type(v) == "table" and not seen[v] then
      seen[v] = true
      for key, each in pairs(v) do
        look(key)
        look(each)
      end
    elseif type(v) ~= "table" and not is_large(v) then
      assert(#tostring(v) > 0 or v == "")
    end
  end
  look(value)
  return kept
end

local function load(path)
  return tensors_in(lm.load(path, { mmap = random(2) == 1 or nil, skip_unreadable = random(2) == 1 or nil }))
end

-- Words of errors about an archive's directory; other errors are about its entries, which are behind it.
local directory = {
  "directory", "overlaps what follows", "two entries", "encrypted", "compression method", "is stored in", "zip64",
  "several disks", "data.pkl' has a wrong checksum", "not a file of weights", "not a safetensors file", "TorchScript",
}
local function behind_directory(message)
  for _, words in ipairs(directory) do
    if message:find(words, 1, true) then return false end
  end
  return true
end

-- Returns the row of a format of golden files, given by a pattern or a list of texts. header(text): where its header
-- ends; an error behind a header that is whole counts as past it; without it, a file is a zip archive.
local function format(name, suffix, pattern, changes, header)
  local all, headers = type(pattern) == "table" and pattern or texts(pattern), {}
  for i, text in ipairs(all) do headers[i] = header and header(text) and text:sub(1, header(text) - 1) or false end
  return {
    name = name, share = 1, load = load,
    past = function(message, text)
      for _, whole in ipairs(headers) do
        if whole and text:sub(1, #whole) == whole then return true end
      end
      return text:find "^PK" and behind_directory(message)
    end,
    change = function()
      local i = random(#all)
      local text, from = all[i], headers[i] and #headers[i] + 1 or 1
      for _ = 1, random(4) == 1 and 2 or 1 do text = pick(changes)(text, from) end
      return text, "case." .. suffix
    end,
  }
end

local function behind(change) return function(text, from) return change(text, from) end end
local function within(change) return function(text, from) return change(text, 1, from) end end
local words = { "<", ">", "|", "f4", "i8", "b1", "u4", "True", "False", "(2,)", "()", "(1, 6)", "0", "24", "'", "}" }
local patterns = { "[<>|]", "[bfiu]%d", "True", "False", "%b()", "%d+", "'", ",", "}" }
local function word(text) return bytes.replace_one(text, pick(patterns), pick(words)) end
local rear, front = behind(damage), within(damage)
local rear_flip = behind(flip)
local function tensor_table(text, from) return damage(text, from, 1200) end -- GGUF's

-- ---- the index of shards: {"weight_map": {tensor: file}}

local shards = { ["1.safetensors"] = { a = lm.ones { 2 }, b = lm.zeros { 3 } }, ["2.safetensors"] = { c = lm.ones {} } }
local index_words = {
  '"a"', '"b"', '"c"', '"d"', '"1.safetensors"', '"2.safetensors"', '"3.safetensors"', '"../1.safetensors"', '""',
  '".."', '"."', '"\\u0000"', '"/dev/zero"', "null", "1", "{}", "[]", "true", '"weight_map"', '"metadata"', '"\\ud800"',
}
local index_patterns = { '"[^"]*"', "%b{}", "%d+", '"[^"]*":"[^"]*"' }
local function change_index()
  local text = '{"metadata":{"total_size":24},'
    .. '"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}'
  local kind = random(8)
  if kind == 1 then text = damage(text) end
  if kind == 2 then text = cut(text) end
  for _ = 1, kind > 3 and random(2) or 0 do
    text = bytes.replace_one(text, pick(index_patterns), pick(index_words))
  end
  return text, "model.safetensors.index.json"
end

local here
local function load_shards(path)
  local folder = path:match "^(.*)/"
  if here ~= folder then
    for name, value in pairs(shards) do lm.save(folder .. "/" .. name, value) end
    here = folder
  end
  local ok, value = pcall(lm.load, random(2) == 1 and folder or path, { mmap = random(2) == 1 or nil })
  return ok and value or error(value:find(folder, 1, true) and value .. " of " .. path or value, 0)
end

-- luminary.torch7's own reader, whose errors name no file.
local torch7 = require "luminary.torch7"
local function load_torch7(path)
  local ok, value = pcall(torch7.load, path, temp.read(path):find "^%d%s" and "ascii" or "binary")
  return ok and tensors_in(value) or error(type(value) == "string" and value .. " in " .. path or value, 0)
end
-- Changes one of Torch7's numbers, of type 1.
local function forge_number(text)
  return bytes.replace_one(text, "\1%z%z%z........", function() return "\1\0\0\0" .. bytes.forged(8) end)
end
local saved = {
  net = torch7.nn.Sequential():add(torch7.nn.Linear(2, 3)):add(torch7.nn.ReLU()), 1, "two", {true, 0.5},
  ids = torch7.LongTensor {1, 2}, bytes = torch7.ByteTensor {1, 2, 3},
}
local own_t7 = format("torch7", "t7", {torch7.serialize(saved), torch7.serialize(saved, "ascii")},
  {rear, rear_flip, rear_flip, cut, front, forge_number}, function() return 60 end)
own_t7.load = load_torch7

return {
  format("npy", "npy", "^[^l].*%.npy$",
    {rear, rear, rear_flip, rear_flip, rear_flip, rear_flip, word, word, front, cut},
    function(text) return 11 + number(text, 9, 2) end),
  format("npz", "npz", "[el][de]%.npz$", {damage, change_entry, change_entry, change_entry, cut}),
  format("torch", "pt", "^[%w ]+%.pt$",
    {change_entry, change_entry, change_entry, change_entry, rear_flip, rear_flip, damage, cut, forge_float},
    function(text) return text:find "^\128" and place_of(text, text:sub(1, 2), 4) end),
  format("GGUF", "gguf", "%.gguf$", {rear, rear_flip, rear_flip, tensor_table, front, cut, forge},
    function(text) return place_of(text, little_endian(3, 8) .. "f32", 1) end),
  format("t7", "t7", "%.t7$", {rear, rear_flip, rear_flip, cut, front, forge_number, forge}, function() return 60 end),
  own_t7,
  {
    name = "shards", share = 1, change = change_index, load = load_shards,
    past = function(message) return not (message:find "json_decode" or message:find "no weight_map") end,
  },
}
