--- Saves and loads tensors and tables: lm.save and lm.load.
local core = require "luminary.core"
local changes = require "luminary.base.weight_changes"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local truncate_text = require "luminary.base.truncate_text"
local formats = require "luminary.file_formats"
local repeats = require "luminary.file_formats.element_limits"
local fail = options.fail

local checkpoint = {}

--- lm.save(path, value [, {kind, tokenizer}]): Saves a tensor, or a table of tensors, numbers, strings,
--- booleans and tables, to a file; a language model as a .gguf.
function checkpoint.save(path, value, opts)
  if type(path) ~= "string" then
    if type(value) == "string" then fail("save: pass the path first: lm.save(path, value)") end
    options.must_be("save", "path", "a string", path)
  end
  if value == nil then fail("save: value is required: lm.save(path, value)") end
  formats.save(path, value, options.check("save", opts, "{kind: string, tokenizer}"))
end

local function warn_of_lacking(path, value, lacking)
  local some = table.concat(lacking, ", ", 1, math.min(#lacking, 3))
  if #lacking > 3 then some = ("%s and %d more"):format(some, #lacking - 3) end
  local what = ("load: '%s': unsupported: %s"):format(path, some)
  if type(value) == "table" and next(value) == nil then fail("%s, and the file has nothing else", what) end
  core.warn(what .. ", left out")
end

--- lm.load(path [, {device, mmap = false, rename, dtype, null, skip_unreadable = false, skip = false,
--- keep_blocks = false}]): Loads a file that lm.save or torch.save saved, or weights in another format.
function checkpoint.load(path, opts)
  if type(path) ~= "string" or path:find("\0", 1, true) then options.must_be("load", "path", "a string", path) end
  opts = options.check("load", opts,
    "{device, mmap = false, rename, dtype: string, null, skip_unreadable = false, skip = false, keep_blocks = false}")
  opts.skip_unreadable = opts.skip_unreadable or opts.skip -- a shorter name of the option
  local file = formats.load(path, opts)
  local value = file.value
  local is_checkpoint = file.metadata.luminary_checkpoint
  if is_checkpoint and load_module("luminary.checkpoint.files").shards_of(path, file.metadata)[1] then
    fail("load: '%s' is a checkpoint in shards; pass it to lm.checkpoint.load, which joins them",
      options.shown_path(path))
  end
  if #file.lacking > 0 then warn_of_lacking(file.path, file.kind == "GGUF" and value.tensors or value, file.lacking) end
  local take = repeats(file)
  value = changes.applied("load", value, opts, function(t, name)
    if take(t) then return end
    fail("load: '%s': %s of %.0f elements is a view that repeats the file too often to convert to %s; load it without "
      .. "dtype", file.path, name and "'" .. truncate_text(name, 100) .. "'" or "the tensor", t:numel(), opts.dtype)
  end)
  if #file.lacking == 0 then return value end
  return value, setmetatable(file.lacking, {__plain = true, __report = true}) -- functions do not take it as options
end

return options.exact_all(checkpoint)
