--- Reads samples from tar archives in WebDataset's layout (https://github.com/webdataset/webdataset).
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local results_as_list = require "luminary.base.results_as_list"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local IterableDataset = require("luminary.data.dataset").IterableDataset
local decoding = require "luminary.data.image_samples"
local Tar = require "luminary.file_formats.tar"
local records = require "luminary.data.files_and_bad_records"
local fail = options.fail

--- data.WebDataset(…): Streams samples from tar archives (shards), plain or gzipped, in the format of WebDataset.
local WebDataset = class.define("WebDataset", IterableDataset)
WebDataset.__makes = "shards"
WebDataset.shard_ranks = true -- the loader's default of this option for the set

-- ---- patterns

local MOST = 1e6 -- most shards of a dataset

local function brace_range_numbers(from, to)
  local list, first, last = {}, tonumber(from), tonumber(to)
  local width = (from:find "^0" or to:find "^0") and math.max(#from, #to) or 1
  if math.max(#from, #to) > 15 then fail("WebDataset: numbers in {%s..%s} must have at most 15 digits", from, to) end
  if math.abs(last - first) >= MOST then fail("WebDataset: {%s..%s} must be at most a million shards", from, to) end
  for i = first, last, first <= last and 1 or -1 do list[#list + 1] = ("%0" .. width .. "d"):format(i) end
  return list
end

-- Returns the alternatives between braces.
local function choices_of(inner)
  local from, to = inner:match "^(%d+)%.%.(%d+)$"
  if from then return brace_range_numbers(from, to) end
  if not inner:find "," then fail("WebDataset: '{%s}' must be a range {000..146} or a list {a,b}", inner) end
  return lists.parts(inner .. ",", "([^,]*),")
end

-- Appends all expansions of a pattern with a shell's braces, after checking their number.
local function expand(pattern, list)
  local parts, count = {}, 1
  local rest = pattern:gsub("([^{}]*){([^{}]*)}", function(before, inner)
    parts[#parts + 1] = {before, choices_of(inner)}
    count = count * #parts[#parts][2]
    return ""
  end)
  if rest:find "[{}]" then fail("WebDataset: braces must be closed and not nested in '%s'", pattern) end
  if #list + count > MOST then fail("WebDataset: the patterns must be at most a million shards") end
  local function write(k, text)
    if not parts[k] then
      list[#list + 1] = text .. rest
      return
    end
    for _, choice in ipairs(parts[k][2]) do write(k + 1, text .. parts[k][1] .. choice) end
  end
  write(1, "")
  return list
end

local function shards_of(shards)
  if type(shards) == "string" then shards = {shards} end
  local list = {}
  for i, pattern in ipairs(options.arg("WebDataset", "shards", shards, "table")) do
    expand(options.arg("WebDataset", "shard " .. i, pattern, "string"), list)
  end
  if #list == 0 then fail("WebDataset: expected at least one shard, the path of a tar archive") end
  for _, path in ipairs(list) do
    local kind = core.file_kind(path)
    if kind ~= "a regular file" then
      fail("WebDataset: cannot open shard '%s': %s", path, kind and "it is " .. kind or "No such file or directory")
    end
  end
  return list
end

-- ---- decoders of bytes; `name` is for messages

local decoders = {}

function decoders.cls(set, bytes)
  local digits = bytes:match "^%s*(%-?%d+)%s*$"
  if not digits then error(("a label must be an integer, got '%s'"):format(bytes:sub(1, 20)), 0) end
  local label = tonumber(digits) + set.base
  if math.abs(label) > 2 ^ 53 then error(("a label of %d digits is too large"):format(#digits), 0) end
  return label
end

function decoders.json(set, bytes) return core.json_decode(bytes, set.null) end
function decoders.txt(_, bytes) return bytes end
local function image(set, bytes, name) return decoding.finish(decoding.encoded(bytes, name), set.transform) end
decoders.text = decoders.txt
for ending in core.image_endings():gmatch "%w+" do decoders[ending] = image end

-- Decodes a file. A decoder's error becomes the sample's; images' errors name it already, a transform's pass through.
local function decode(set, extension, bytes, name)
  if set.decoders == false then return bytes end
  local kind = extension:match "[^.]*$"
  local own = set.decoders[kind]
  local f = decoders[kind]
  if not own and (not f or f == image) then return f and f(set, bytes, name) or bytes end
  local ok, value = pcall(function()
    if own then return results_as_list.of_sample("its decoder", own(bytes)) end
    return f(set, bytes)
  end)
  if not ok then options.fail_in_file(name, records.reason(value, "json_decode")) end
  if value == nil then options.fail_in_file(name, "the decoder returned nil") end
  return value
end

-- ---- samples

WebDataset.init = signature.of([[WebDataset(shards, {fields: table, transform: callable, decode: table|false = {},
  base: integer = 1, null, shuffle: natural = 0, shuffle_shards = false,
  on_error = "raise" | "skip"})]], function(self, shards, opts)
  self.shards = shards_of(shards)
  records.begin(self, opts.on_error)
  for _, name in ipairs {"transform", "base", "null", "shuffle", "shuffle_shards"} do self[name] = opts[name] end
  self.decoders, self.fields = opts.decode, opts.fields and {} or nil
  for kind, f in pairs(opts.decode or {}) do
    options.arg("WebDataset", "decode." .. tostring(kind), f, "function")
  end
  for i, field in ipairs(opts.fields or {}) do
    self.fields[i] = {}
    for extension in options.arg("WebDataset", "field " .. i, field, "string"):gmatch "[^;%s]+" do
      table.insert(self.fields[i], extension:lower())
    end
  end
  self.part, self.parts = 0, 1
end)

--- Selects part i, from 0, of n. A loader's worker calls it.
WebDataset.shard = signature.of("WebDataset:shard(i: natural, n: count)", function(self, i, n)
  self.part, self.parts = i, n
  if i >= n then fail("WebDataset:shard: part %d is out of range for %d parts (parts start at 0)", i, n) end
end)

local function draw_up_to(n) return core.ops.randint(1, n + 1, {1}):item() end

-- Returns this part's shards in the order of this pass, and true if parts split the samples instead of the shards.
local function plan_shard_order(self)
  local whole, list = #self.shards >= self.parts, {}
  for i, path in ipairs(self.shards) do
    if not whole or (i - 1) % self.parts == self.part then list[#list + 1] = path end
  end
  if self.shuffle_shards and whole then
    for i = #list, 2, -1 do
      local k = draw_up_to(i)
      list[i], list[k] = list[k], list[i]
    end
  end
  return list, not whole
end

-- Returns a function that returns samples of undecoded files, one after another: {key, shard, files}.
local function undecoded_samples(self)
  local list, by_sample = plan_shard_order(self)
  local at, count, tar, current = 0, 0, nil, nil
  local function attempt(f)
    local ok, value = records.attempt(self, list[at], f, tar or list[at])
    if not ok then tar, current = nil, nil end
    return ok, value
  end
  local function finished()
    local done = current
    current = nil
    return done and not done.left_out and done or nil
  end
  local function begin_sample(key)
    count = count + 1
    current = {key = key, shard = list[at], files = {}}
    current.left_out = by_sample and (count - 1) % self.parts ~= self.part
  end
  -- Adds a file. Returns the sample that this file ends, if there is one.
  local function take_file(name)
    local folder = name:match "^.*/" or ""
    local stem, extension = name:sub(#folder + 1):match "^([^.]+)%.(.*)$"
    if not stem then return nil end
    local key, done = folder .. stem, nil
    extension = extension:lower()
    if not current or current.key ~= key then
      done = finished()
      begin_sample(key)
    end
    if current.left_out then return done end
    if current.files[extension] then
      records.attempt(self, list[at], options.fail_in_file, list[at], "the sample '%s' has two files .%s", key,
        extension)
      current.left_out = true
      return done
    end
    local ok, bytes = attempt(Tar.read)
    if ok then current.files[extension] = bytes end
    return done
  end
  return function()
    while tar or list[at + 1] do
      local ok, name, done
      if not tar then
        at = at + 1
        ok, tar = attempt(Tar.open)
        if not ok then tar = nil end
      end
      if tar then ok, name = attempt(Tar.next) end
      if ok and name then
        done = take_file(name)
      elseif ok and tar then
        tar:close()
        tar, done = nil, finished()
      end
      if done then return done end
    end
  end
end

-- Shuffles samples: each is drawn from a buffer of `room` samples.
local function shuffled(next_raw, room)
  if room < 2 then return next_raw end
  local waiting, ended = {}, false
  return function()
    while not ended and #waiting < room do
      local one = next_raw()
      waiting[#waiting + 1], ended = one, one == nil
    end
    local n = #waiting
    if n == 0 then return nil end
    local k = draw_up_to(n)
    local one = waiting[k]
    waiting[k] = waiting[n]
    waiting[n] = nil
    return one
  end
end

local function file_of(sample, extensions)
  local extension = lists.find(extensions, function(each) return sample.files[each] end)
  if extension then return extension, sample.files[extension] end
  options.fail_in_file(sample.shard, "sample '%s' has no %s; it has %s", sample.key,
    table.concat(extensions, " nor "), table.concat(lists.sorted_keys(sample.files), ", "))
end

local function decoded(self, sample)
  local function value(extension, bytes)
    return decode(self, extension, bytes, ("%s: %s.%s"):format(sample.shard, sample.key, extension))
  end
  local values = {}
  if self.fields then
    for i, extensions in ipairs(self.fields) do values[i] = value(file_of(sample, extensions)) end
    return unpack(values, 1, #self.fields)
  end
  for _, extension in ipairs(lists.sorted_keys(sample.files)) do -- sorted, since transforms may draw random numbers
    values[extension] = value(extension, sample.files[extension])
  end
  values.__key__ = sample.key
  return values
end

--- for sample… in set:iter() do: Iterates over this part's samples.
function WebDataset:iter()
  local next_raw = shuffled(undecoded_samples(self), self.shuffle)
  local given
  local function next_sample()
    local sample = next_raw()
    if not sample then return nil end
    return given(records.attempt(self, sample.shard, decoded, self, sample))
  end
  function given(ok, ...)
    if ok then return ... end
    return next_sample()
  end
  return next_sample
end

function WebDataset:repr() return ("WebDataset(%d shards)"):format(#self.shards) end

return {WebDataset = WebDataset}
