--- Saving and loading: lm.save and lm.load. By default a file is a safetensors file: a plain one of a flat table of
--- tensors, which Python reads, and one with a description of anything deeper.
local core = require "luminary.core"
local changes = require "luminary.base.weight_changes"
local options = require "luminary.base.options"
local excerpt = require "luminary.base.excerpt"
local formats = require "luminary.file_formats"
local repeats = require "luminary.file_formats.repeats"
local fail = options.fail

local checkpoint = {}

--- lm.save(path, value): a tensor, or a table of tensors, numbers, strings, booleans and tables. Written
--- beside the path and renamed: a crash leaves the old file or the new one, whole. The path's ending chooses the
--- format: .npy (NumPy's, of one tensor), .npz (of tensors by name), .pt, .pth or .bin, which
--- torch.load(path, weights_only=True) reads; safetensors for any other. Those of formats that are not written (.t7,
--- .gguf, .h5, .onnx, .json, .zip, …) are an error. An optimizer's state_dict has the numbers of its parameters in .pt
--- as torch.optim counts them, from 0; load_state_dict takes either, here and there.
function checkpoint.save(path, value)
  if type(path) ~= "string" then
    if type(value) == "string" then fail("save: pass the path first: lm.save(path, value)") end
    options.must_be("save", "path", "a string", path)
  end
  if value == nil then fail("save: value is required: lm.save(path, value)") end
  formats.save(path, value)
end

local function warn_of_lacking(path, value, lacking)
  local some = table.concat(lacking, ", ", 1, math.min(#lacking, 3))
  if #lacking > 3 then some = ("%s and %d more"):format(some, #lacking - 3) end
  local what = ("load: '%s': unsupported: %s"):format(path, some)
  if type(value) == "table" and next(value) == nil then fail("%s, and the file has nothing else", what) end
  core.warn(what .. ", left out")
end

--- lm.load(path [, {device, mmap = false, rename, dtype, null, skip_unreadable = false}]): what lm.save wrote, or the
--- tensors by name of any safetensors file. Files of others are known by their first bytes. torch.save's (.pt, .pth,
--- .bin) give their value, so that a state dict is a table of tensors by name: an unpickler of ours reads them, which
--- runs nothing; what is neither tensor nor plain value is an error that names it. Tuples and sets become lists, keys
--- stay as they are, ints beyond 2^53 int64 cdata, None nil (a key that is not there, a hole in a list) or what `null`
--- gives. Of NumPy's, .npy gives a tensor, .npz tensors by name. A folder gives the weights in it, as Hugging Face
--- names them; of a model.safetensors.index.json or pytorch_model.bin.index.json there, which may be named too, tensors
--- by name out of several files. .gguf gives {metadata, tensors}, of which those of Q8_0, Q4_0, Q4_1, Q5_0, Q5_1,
--- Q4_K, Q5_K and Q6_K become float32, under llama.cpp's names and with its order of rows, which lm.models.llama
--- {weights = "x.gguf"} makes Hugging Face's; .t7, known by its name alone, Torch7's tables and tensors, with objects
--- as tables that have "__typename".
--- Of dtypes that tensors here do not have uint32 becomes int64; others (F8_E4M3, complex64, NumPy's objects, …) are
--- left out, which is one warning that names them, or an error where none is left. skip_unreadable = true does the same
--- with what else of torch.save's file or of a .npz cannot be read: an object of a class, a damaged entry.
--- rename gives tensors other names: {["^model%."] = ""}, Lua's patterns and what they become (false leaves such out),
--- the longest first, {{"^model%.", ""}, …} where another order matters, or a function(name) that gives the new one, or
--- nil to leave it out. dtype is what floating tensors become; of views that repeat a file's elements at most 2^24 more
--- than the file has bytes are made.
--- A file that is written to meanwhile is an error. mmap = true maps it instead of reading it: at once, and only what
--- is used costs memory, but as long as a tensor of it lives nobody may write into the file (replace it, as lm.save
--- does): written over in place, the tensors change; cut short, what computes with what is gone is an error, but for
--- what was cut off within a page of 4 KiB, which reads as zeros.
function checkpoint.load(path, opts)
  if type(path) ~= "string" then options.must_be("load", "path", "a string", path) end
  opts = options.check("load", opts, changes.with {
    mmap = {"boolean", false}, null = {"any"}, skip_unreadable = {"boolean", false},
  }, "device")
  local file = formats.load(path, opts)
  local value = file.value
  if #file.lacking > 0 then warn_of_lacking(file.path, file.kind == "GGUF" and value.tensors or value, file.lacking) end
  local take = repeats(file)
  return changes.applied("load", value, opts, function(t, name)
    if take(t) then return end
    fail("load: '%s': %s of %.0f elements is a view that repeats the file too often to convert to %s; load it without "
      .. "dtype", file.path, name and "'" .. excerpt(name, 100) .. "'" or "the tensor", t:numel(), opts.dtype)
  end)
end

return options.exact_all(checkpoint)
