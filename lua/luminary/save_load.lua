--- Saving and loading of tensors and tables: lm.save and lm.load.
local core = require "luminary.core"
local changes = require "luminary.base.weight_changes"
local options = require "luminary.base.options"
local excerpt = require "luminary.base.excerpt"
local formats = require "luminary.file_formats"
local repeats = require "luminary.file_formats.repeats"
local fail = options.fail

local checkpoint = {}

--- lm.save(path, value): Saves a tensor, or a table of tensors, numbers, strings, booleans and tables, to a file.
function checkpoint.save(path, value)
  if type(path) ~= "string" then
    if type(value) == "string" then fail("save: the path comes first: lm.save(path, value)") end
    fail("save: the path has to be a string, got %s", options.describe(path))
  end
  if value == nil then fail("save: a value to save wanted: lm.save(path, value)") end
  formats.save(path, value)
end

local function warn_of_lacking(path, value, lacking)
  local some = table.concat(lacking, ", ", 1, math.min(#lacking, 3))
  if #lacking > 3 then some = ("%s and %d more"):format(some, #lacking - 3) end
  local what = ("load: %s: this version cannot read %s"):format(path, some)
  if type(value) == "table" and next(value) == nil then fail("%s, and there is nothing else in the file", what) end
  core.warn(what .. ", left out")
end

--- lm.load(path [, {device, mmap = false, rename, dtype, null, skip_unreadable = false}]): Loads what lm.save or
--- torch.save saved, or the weights of another format, from a file.
function checkpoint.load(path, opts)
  if type(path) ~= "string" then fail("load: the path has to be a string, got %s", options.describe(path)) end
  opts = options.check("load", opts, changes.with {
    mmap = {"boolean", false}, null = {"any"}, skip_unreadable = {"boolean", false},
  }, "device")
  local file = formats.load(path, opts)
  local value = file.value
  if #file.lacking > 0 then warn_of_lacking(file.path, file.kind == "GGUF" and value.tensors or value, file.lacking) end
  local take = repeats(file)
  return changes.applied("load", value, opts, function(t, name)
    if take(t) then return end
    fail("load: %s: %s of %.0f elements repeats too much of the file to become %s; without dtype it stays a view",
      file.path, name and "'" .. excerpt(name, 100) .. "'" or "the tensor", t:numel(), opts.dtype)
  end)
end

return options.exact_all(checkpoint)
