--- Reads tables from CSV files.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local results_as_list = require "luminary.base.results_as_list"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local truncate_text = require "luminary.base.truncate_text"
local dataset = require "luminary.data.dataset"
local records = require "luminary.data.files_and_bad_records"
local fail = options.fail

--- data.CSVDataset(…): Loads a table from a CSV file (RFC 4180), plain or gzipped.
local CSVDataset = class.define("CSVDataset", dataset.Dataset)
CSVDataset.__makes = "rows"

-- Returns a column or a list of columns as a list; nil as an empty one.
local function listed(v)
  if v == nil then return {} end
  return type(v) == "table" and v or {v}
end

-- Returns the numbers of columns, which may be passed by name.
local function columns_of(self, option, wanted)
  local list = {}
  for i, column in ipairs(listed(wanted)) do
    if type(column) == "number" then
      if column % 1 ~= 0 or column < 1 or column > self.width then
        fail("CSVDataset: %s: '%s' has columns 1 to %d, got %s", option, self.path, self.width, tostring(column))
      end
      list[i] = column
    else
      if not self.columns then
        fail("CSVDataset: %s: columns have no names with header = false; pass a number instead of %s", option,
          options.describe(column))
      end
      for k, name in ipairs(self.columns) do
        if name == column then
          if list[i] then fail("CSVDataset: %s: two columns of '%s' have the name '%s'", option, self.path, name) end
          list[i] = k
        end
      end
      if not list[i] then
        local near = type(column) == "string" and core.nearest(column, self.columns)
        fail("CSVDataset: %s: '%s' has no column '%s'%s columns are %s", option, self.path, tostring(column),
          near and ("; did you mean '" .. near .. "'?") or ";", table.concat(self.columns, ", "):sub(1, 300))
      end
    end
  end
  return list
end

local function by_value(a, b)
  local x, y = tonumber(a), tonumber(b)
  if x and y and x ~= y then return x < y end
  if (x == nil) ~= (y == nil) then return x ~= nil end
  return a < b
end

-- Returns the distinct values of text column k of the spans, sorted, or the given ones, and each row's index among
-- them. Other values get the index `other` or, if that is nil, false: their rows are omitted, or an error.
local function encode(self, given, k, column, what, other)
  local names, numbers, count = {}, {}, {}
  for i, name in ipairs(given or {}) do count[tostring(name)], names[i] = i, tostring(name) end
  for i = 1, self.rows do
    local name = core.span_text(self.text, self.spans, i, k)
    if not count[name] and not given then count[name], names[#names + 1] = true, name end
    numbers[i] = name
  end
  if not given then table.sort(names, by_value) end
  for i, name in ipairs(names) do count[name] = i end
  for i, name in ipairs(numbers) do
    numbers[i] = count[name] or other or false
    if not numbers[i] and self.on_error == "raise" then
      fail("CSVDataset: '%s': line %d, column %d: '%s' is not one of the %s %s", self.path,
        core.csv_line_of(self.text, self.spans, i, k), column, name, what,
        truncate_text("'" .. table.concat(names, "', '") .. "'", 200))
    end
  end
  return names, numbers
end

-- Encodes labels and categories of all rows, from consecutive text columns. Returns the tensors, and the numbers of the
-- rows that remain; nil means all.
local function classify(self, opts, wanted)
  local columns, keep, tensors = {}, {}, {}
  if wanted.label[1] then
    self.classes, columns[1] = encode(self, opts.classes, 1, wanted.label[1], "classes")
    self.class_to_idx = {}
    for i, name in ipairs(self.classes) do self.class_to_idx[name] = i - 1 + self.base end
  end
  for i, column in ipairs(wanted.categorical) do
    local name = self.columns and self.columns[column] or column
    local given, k = opts.categories and opts.categories[name], #columns + 1
    local other = opts.unknown == "code" and (given and #given + 1 or 0) or nil -- 0: learned categories are complete
    self.categories[name], columns[k] = encode(self, given, k, column, ("categories of '%s':"):format(name), other)
    self.cardinalities[i] = #self.categories[name] + (other and 1 or 0)
  end
  for row = 1, self.rows do
    local good = true
    for _, codes in ipairs(columns) do good = good and codes[row] end
    if good then
      keep[#keep + 1] = row
      for _, codes in ipairs(columns) do codes[#keep] = codes[row] end
    end
  end
  for c, codes in ipairs(columns) do
    for i = self.rows, #keep + 1, -1 do codes[i] = nil end
    tensors[c] = core.tensor(codes, {dtype = "int64"})
  end
  return tensors, #keep < self.rows and core.tensor(keep, {dtype = "int64"}) or nil
end

-- Copies `count` columns from `first` on to new memory.
local function part(numbers, first, count)
  if count == 0 then return nil end
  return core.keep(numbers:narrow(2, first, count):clone():contiguous())
end

-- Reads numbers, texts and labels of all rows.
local function read(self, opts, starts, wanted)
  local number, text, slots, texts = {}, {}, 0, 0
  for i = 1, self.width do number[i], text[i] = 0, 0 end
  local function take(list, option)
    for _, column in ipairs(list) do
      if number[column] ~= 0 then fail("CSVDataset: %s: column %d is listed twice", option, column) end
      slots = slots + 1
      number[column] = slots
    end
  end
  take(wanted.features, "features")
  take(wanted.target, "target")
  for _, option in ipairs {"label", "categorical", "text"} do
    for _, column in ipairs(wanted[option]) do
      texts = texts + 1
      text[column] = texts
    end
  end
  local numbers, spans, rows = core.csv_read(self.path, self.text, opts.delimiter, starts, number, text,
    self.columns or {}, opts.missing == "nan", self.on_error == "skip")
  self.faults:add_(starts.shape[1] - 1 - rows)
  self.rows, self.spans = rows, spans:narrow(1, 1, rows):contiguous()
  numbers = numbers:narrow(1, 1, rows)
  local coded = #wanted.label + #wanted.categorical
  if coded > 0 then
    local tensors, remaining = classify(self, opts, wanted)
    if remaining then
      self.faults:add_(rows - #remaining)
      self.rows, self.spans = #remaining, core.gather_rows(self.spans, remaining)
      numbers = core.gather_rows(numbers, remaining)
    end
    local labels = #wanted.label == 1 and table.remove(tensors, 1)
    self.labels = labels and core.keep(labels:add_(self.base - 1)) or nil
    self.codes = tensors[1] and core.keep(core.ops.stack(tensors, 2):contiguous()) or nil
  end
  self.features = part(numbers, 1, #wanted.features)
  self.targets = part(numbers, #wanted.features + 1, #wanted.target)
  if self.targets and type(opts.target) ~= "table" then self.targets = core.keep(self.targets:view(-1)) end
  self.texts = #wanted.text > 0 and {first = coded + 1, last = texts} or nil
  if not self.texts then self.text, self.spans = nil, nil end -- later reads need only texts
end

-- Checks the given lists of categories, by column.
local function need_categories(self, opts, columns)
  local known = lists.set(lists.map(columns, function(column)
    return self.columns and self.columns[column] or column
  end))
  for name, list in pairs(opts.categories or {}) do
    if not known[name] then
      fail("CSVDataset: categories: '%s' is not a column of categorical", tostring(name))
    end
    options.arg("CSVDataset", ("categories of '%s'"):format(name), list, "list")
    local seen = {}
    for _, value in ipairs(list) do
      value = tostring(value)
      if seen[value] then fail("CSVDataset: categories of '%s': '%s' is listed twice", name, value) end
      seen[value] = true
    end
  end
  self.categories, self.cardinalities = #columns > 0 and {} or nil, #columns > 0 and {} or nil
end

CSVDataset.init = signature.of([[CSVDataset(path: string, {features, label, target, text, header = true,
  delimiter = ",", missing = "error" | "nan", classes: table, categorical, categories: table,
  unknown = "error" | "code", base: integer = 1, transform: callable,
  target_transform: callable, on_error = "raise" | "skip"})]], function(self, path, opts)
  self.path = path
  if #opts.delimiter ~= 1 or opts.delimiter:find '[%w"\r\n]' then
    options.must_be("CSVDataset", "delimiter", "one character, such as ',', ';' or a tab", opts.delimiter)
  end
  records.begin(self, opts.on_error)
  self.base, self.transform, self.target_transform = opts.base, opts.transform, opts.target_transform
  self.text = core.keep(records.bytes_of(path))
  local starts = core.csv_rows(path, self.text, opts.delimiter)
  if starts.shape[1] < 2 then fail("CSVDataset: '%s' has no lines", path) end
  local first = core.csv_fields(path, self.text, opts.delimiter, starts[1], starts[2])
  self.width = #first
  if opts.header then
    self.columns, starts = first, starts:narrow(1, 2, starts.shape[1] - 1):contiguous()
  end
  local wanted, named = {}, {}
  for _, option in ipairs {"label", "target", "text", "categorical", "features"} do
    wanted[option] = columns_of(self, option, opts[option])
    for _, column in ipairs(wanted[option]) do named[column] = true end
  end
  if #wanted.label > 1 then fail("CSVDataset: label must be one column; target may be a list") end
  if opts.classes and not opts.label then fail("CSVDataset: classes requires label") end
  need_categories(self, opts, wanted.categorical)
  if opts.features == nil then
    for column = 1, self.width do
      if not named[column] then table.insert(wanted.features, column) end
    end
  end
  read(self, opts, starts, wanted)
  core.keep {self.text, self.spans}
end)

--- Returns true if there are texts or transforms.
function CSVDataset:one_by_one() return (self.texts or self.transform or self.target_transform) ~= nil end

function CSVDataset:len() return self.rows end

function CSVDataset:get(i)
  i = self:index(i)
  local sample, n = {}, 0
  if self.features then
    sample[1], n = results_as_list.apply(self, "transform", self.features:select(1, i):clone()), 1
  end
  if self.codes then
    n = n + 1
    sample[n] = self.codes:select(1, i):clone()
  end
  for _, column in ipairs {self.labels or false, self.targets or false} do
    if column then
      local value = column == self.labels and column[i] or column:select(1, i):clone()
      n = n + 1
      sample[n] = results_as_list.apply(self, "target_transform", value)
    end
  end
  if self.texts then
    for k = self.texts.first, self.texts.last do
      n = n + 1
      sample[n] = core.span_text(self.text, self.spans, i, k)
    end
  end
  return unpack(sample, 1, n)
end

-- Returns the features [N, F], codes [N, C], labels [N] and targets that exist.
dataset.define_get_batch(CSVDataset, function(self, index)
  local batch = {}
  for _, column in ipairs {self.features or false, self.codes or false, self.labels or false, self.targets or false} do
    if column then batch[#batch + 1] = core.gather_rows(column, index) end
  end
  return unpack(batch)
end)

return {CSVDataset = CSVDataset}
