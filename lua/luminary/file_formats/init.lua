--- Chooses a file's reader or writer by its contents or name. Each is loaded at its first use.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"

local formats = {}

local function format(name) return load_module("luminary.file_formats." .. name) end

local function check_for_arrays(archive)
  local names, n = {}, #archive.entries
  for i, entry in ipairs(archive.entries) do
    if entry.name:find "%.npy$" then return end
    if i <= 3 then names[i] = ("'%s'"):format(printable_name(entry.name, 100)) end
  end
  if n == 0 then return end -- written by lm.save(path, {})
  archive.source:fail("not an .npz or torch.save file: a zip archive of %d file%s: %s%s", n, n == 1 and "" or "s",
    table.concat(names, ", "), n > 3 and ", …" or "")
end

local function load_zip(source)
  local archive = format("zip").open(source)
  for _, entry in ipairs(archive.entries) do
    if entry.name:find "^[^/]*/data%.pkl$" or entry.name == "data.pkl" then
      return "torch.save", format("torch_file").load_zip(archive, entry)
    end
  end
  check_for_arrays(archive)
  return "NumPy archive", format("numpy").load_all(archive)
end

-- The readers, each after the pattern of a file's first bytes; they return the kind, the value and skipped tensors.
local readers = {
  {"^PK[\3\5][\4\6]", load_zip},
  {"^\147NUMPY", function(source) return "NumPy array", format("numpy").load(source) end},
  {"^GGUF", function(source) return "GGUF", format("gguf").load(source) end},
}

-- Unsupported files, by their first bytes, and the remedy.
local others = {
  {"^%s*[%[{]", "JSON; for sharded weights pass the .index.json or the folder"},
  {"^\31\139", "compressed by gzip; run gunzip first"},
  {"^sys_info%z", "a tar archive of torch.save's from before 2017; in Python, load and save it"},
  {"^\137HDF", "HDF5; in Python, convert it with safetensors.numpy.save_file"},
}

local function load_safetensors(source) return "safetensors", format("checkpoint").load(source) end

local function read_source(source)
  if source.path:find "%.t7$" then return "Torch7", format("torch7_file").load(source) end
  if source.size == 0 then source:fail "the file is empty" end
  if source.path:find "%.onnx$" then
    local tensors, lacking, metadata = load_module("luminary.onnx.tensors").load(source.path)
    return "ONNX", tensors, lacking, metadata
  end
  local head = source:text(0, math.min(source.size, 9))
  for _, reader in ipairs(readers) do
    if head:find(reader[1]) then return reader[2](source) end
  end
  local may_be_ours = #head < 8 or Source.unsigned(head, 1, 8) <= 1e8 -- begins with the header's length
  if may_be_ours and head:find "^........{" then return load_safetensors(source) end
  if not may_be_ours and head:find "^\128[\1-\5]" then
    return "torch.save before 1.6", format("torch_file").load_legacy(source)
  end
  for _, other in ipairs(others) do
    if head:find(other[1]) then source:fail("not a file of weights: %s", other[2]) end
  end
  if may_be_ours then return load_safetensors(source) end -- load_safetensors raises the error
  source:fail("unknown format; supported are safetensors, torch.save's .pt, .npy, .npz, .gguf, .onnx and .t7")
end

-- Returns the contents of one file, as formats.load does.
local function load_one(path, opts)
  local kind, value, lacking, metadata = Source.with(path, opts, read_source)
  return {path = path, kind = kind, value = value, lacking = lacking or {}, metadata = metadata or {}}
end

--- Loads a file: {path = that of the weights, if a folder was passed, kind = the kind of file, value, lacking = list of
--- skipped tensors, each "'name' (why)", with a field `advice` if there is any, `bytes` of an index of shards with
--- these, and `stored` of a GGUF file (gguf.lua), metadata = that of a safetensors file or an index of shards}. opts:
--- {device, mmap, null, skip_unreadable}.
function formats.load(path, opts)
  if core.file_kind(path) == "a folder" then path = format("sharded").weights_in(path) end
  if not path:find "%.index%.json$" then return load_one(path, opts) end
  local tensors, metadata, lacking, kind = format("sharded").load(path, opts, load_one)
  kind = "sharded " .. (kind or "weights")
  return {path = path, kind = kind, value = tensors, lacking = lacking, metadata = metadata}
end

local writers = {
  npy = function(path, value) format("numpy").save(path, value) end,
  npz = function(path, value) format("numpy").save_all(path, value) end,
  pt = function(path, value) format("torch_file").save(path, value) end,
  gguf = function(path, value, opts) load_module("luminary.models.save_gguf").save(path, value, opts) end,
}
writers.pth, writers.bin, writers.ckpt = writers.pt, writers.pt, writers.pt

-- Extensions of formats that are not written, and programs that write them.
local unwritten = {
  t7 = "; the rock luminary-torch7 writes it: require(\"luminary.torch7\").save",
}
for ending in ("h5 hdf5 keras onnx pb tflite msgpack pkl pickle joblib mat csv tsv json jsonl zip tar gz bz2 xz zst")
  :gmatch "%S+" do
  unwritten[ending] = ""
end

--- Writes the file in the format of its extension, by default as safetensors. opts: {kind, tokenizer}, for GGUF.
function formats.save(path, value, opts)
  local ending = (path:match "%.(%w+)$" or ""):lower()
  if unwritten[ending] then
    options.fail_file("write", path, ("unsupported extension .%s; use .safetensors, .pt, .npz or .npy%s"):format(ending,
      unwritten[ending]))
  end
  local write = writers[ending] or format("checkpoint").save
  local name = ending ~= "gguf" and next(opts)
  if name then options.fail("save: %s is for files that end in .gguf, got '%s'", name, options.shown_path(path)) end
  write(path, value, opts)
end

return formats
