--- Reads weights in several files, safetensors or torch.save's, by an index of the file of each tensor: Hugging Face's
--- model.safetensors.index.json or pytorch_model.bin.index.json: {"metadata": {...}, "weight_map": {tensor's name:
--- file's name}}.
local core = require "luminary.core"
local options = require "luminary.base.options"
local printable_name = require "luminary.base.printable_name"
local Source = require "luminary.file_formats.source"

local sharded = {}

local function read_index(path)
  local ok, index = pcall(core.json_decode, Source.whole_text(path), false)
  if not ok then options.fail_in_file(path, (index:gsub("^.-json_decode: ", ""))) end
  local map = type(index) == "table" and index.weight_map
  if type(map) ~= "table" then options.malformed_file(path, "index", "it has no weight_map") end
  return map, type(index.metadata) == "table" and index.metadata or {}
end

--- Returns the tensors by name that the index at `path` lists, its metadata, the skipped tensors, and the files' kind.
--- read(path, opts) returns the contents of one file, as formats.load does.
function sharded.load(path, opts, read)
  local map, metadata = read_index(path)
  local folder, by_file, files = path:match "^(.*/)[^/]*$" or "", {}, {}
  for name, file in pairs(map) do
    if type(name) ~= "string" or type(file) ~= "string" or file:find "[/%z]" or file == "" or file == ".." then
      options.malformed_file(path, "index", "'%s' is in '%s', which is not a file name",
        printable_name(tostring(name), 100), printable_name(tostring(file), 100))
    end
    if not by_file[file] then
      by_file[file] = {}
      files[#files + 1] = file
    end
    by_file[file][name] = true
  end
  table.sort(files)
  local tensors, lacking, kind = {}, {bytes = select(2, core.file_kind(path))}, nil
  for _, file in ipairs(files) do
    if not core.file_kind(folder .. file) then
      options.fail_in_file(path, "cannot open its shard '%s': No such file or directory", printable_name(file, 100))
    end
    local shard = read(folder .. file, opts)
    lacking.bytes = lacking.bytes + select(2, core.file_kind(folder .. file))
    local value, left_out = options.is_plain(shard.value) and shard.value or {}, {}
    for _, each in ipairs(shard.lacking) do
      lacking[#lacking + 1] = each
      left_out[each:match "^'(.*)' %(" or ""] = true
    end
    lacking.advice, kind = lacking.advice or shard.lacking.advice, kind or shard.kind
    for name in pairs(by_file[file]) do
      if not core.is_tensor(value[name]) and not left_out[name] and not left_out[printable_name(name, 100)] then
        options.fail_in_file(path, "'%s' is missing in '%s'", printable_name(name, 100),
          options.shown_path(folder .. file))
      end
      tensors[name] = value[name]
    end
  end
  return tensors, metadata, lacking, kind
end

-- Names of weights in folders of Hugging Face's models.
local names = {
  "model.safetensors.index.json", "model.safetensors", "diffusion_pytorch_model.safetensors",
  "pytorch_model.bin.index.json", "pytorch_model.bin",
}

--- Returns the file in a folder that has its weights, or their index.
function sharded.weights_in(folder)
  for _, name in ipairs(names) do
    local path = folder:gsub("/+$", "") .. "/" .. name
    if core.file_kind(path) then return path end
  end
  options.fail("load: '%s' is a folder, not a regular file, and has none of %s", folder, table.concat(names, ", "))
end

return sharded
