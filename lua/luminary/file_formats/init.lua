--- Other people's weights: which reader or writer a file takes. Each is loaded when it is first wanted.
local core = require "luminary.core"
local Source = require "luminary.file_formats.source"

local formats = {}

local function format(name) return require("luminary.file_formats." .. name) end

local function load_zip(source)
  local archive = format("zip").open(source)
  for _, entry in ipairs(archive.entries) do
    if entry.name:find "^[^/]*/data%.pkl$" or entry.name == "data.pkl" then
      return format("torch_file").load_zip(archive, entry), "torch.save"
    end
  end
  return format("numpy").load_all(archive), "NumPy archive"
end

-- What a file is known by, and its reader: value, kind, those left out.
local readers = {
  {"^PK[\3\5][\4\6]", load_zip},
  {"^\147NUMPY", function(source) return format("numpy").load(source), "NumPy array" end},
  {"^GGUF", function(source)
    local value, lacking = format("gguf").load(source)
    return value, "GGUF", lacking
  end},
}

local LARGEST_HEADER = 1e8 -- of a safetensors file, which begins with its length

local function read_source(source)
  if source.path:find "%.t7$" then return format("torch7_file").load(source), "Torch7" end
  local head = source:text(0, math.min(source.size, 8))
  for _, reader in ipairs(readers) do
    if head:find(reader[1]) then return reader[2](source) end
  end
  if head:find "^\128[\1-\5]" and #head == 8 and Source.unsigned(head, 1, 8) > LARGEST_HEADER then
    return format("torch_file").load_legacy(source), "torch.save before 1.6"
  end
  return nil, "safetensors"
end

--- The path, of the weights in it if it is a folder; the value in a file that is no single safetensors file, what kind
--- of file it is, and a list of tensors that are left out, as core.safetensors_load gives it; of a safetensors file nil
--- and "safetensors". opts: {device, mmap, null}.
function formats.load(path, opts)
  if core.file_kind(path) == "a folder" then path = format("sharded").weights_in(path) end
  if path:find "%.index%.json$" then
    local tensors, _, lacking = format("sharded").load(path, opts)
    return path, tensors, "sharded safetensors", lacking
  end
  local source = Source.open(path, opts)
  local ok, value, kind, lacking = pcall(read_source, source)
  source:close()
  if not ok then error(value, 0) end -- it says where
  return path, value, kind, lacking
end

local writers = {
  npy = function(path, value) format("numpy").save(path, value) end,
  npz = function(path, value) format("numpy").save_all(path, value) end,
  pt = function(path, value) format("torch_file").save(path, value) end,
}
writers.pth = writers.pt

--- Writes the file if its name asks for another format than safetensors; whether it did.
function formats.save(path, value)
  local write = writers[path:match "%.(%w+)$"]
  if write then write(path, value) end
  return write ~= nil
end

return formats
