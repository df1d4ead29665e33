--- Reads sets of files in folders, with one folder for each class.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local results_as_list = require "luminary.base.results_as_list"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Dataset = require("luminary.data.dataset").Dataset
local decoding = require "luminary.data.image_samples"
local records = require "luminary.data.files_and_bad_records"
local fail = options.fail

-- The class of set.samples: samples[i] is made from tensors when it is read, since there may be millions.
local Samples = class.define("samples")

function Samples:init(set) self.set = set end
function Samples:len() return self.set:len() end
function Samples:repr() return ("samples(%d pairs of a path and a label)"):format(self:len()) end

local function samples_of(set)
  local values = setmetatable({set = set}, getmetatable(Samples).instance)
  return class.object(Samples, {values = values, __index = function(_, key)
    if type(key) == "number" then return {set:file_of(key), set.targets[key]} end
    return values[key]
  end})
end

--- data.DatasetFolder(…): Loads a dataset of files in folders, one folder for each class: root/class/…/file.
local DatasetFolder = class.define("DatasetFolder", Dataset)
DatasetFolder.__makes = "spans"

local function suffixes_of(who, extensions)
  if extensions == nil then return {} end
  if type(extensions) == "string" then extensions = {extensions} end
  return lists.map(options.arg(who, "extensions", extensions, "table"), function(extension)
    return "." .. options.arg(who, "an extension", extension, "string"):gsub("^%.", "")
  end)
end

-- Removes files for which is_valid returns false.
local function sieve(self, counts, is_valid)
  local keep = {}
  for k in ipairs(counts) do counts[k] = 0 end
  for i = 1, self.spans.shape[1] do
    if is_valid(self:file_of(i)) then
      local label = self.targets[i] + 1
      keep[#keep + 1], counts[label] = i, counts[label] + 1
    end
  end
  local which = core.tensor(keep, {dtype = "int64"})
  self.spans, self.targets = core.gather_rows(self.spans, which), core.gather_rows(self.targets, which)
end

local function set_up(self, root, opts)
  local who = self.__name
  self.root = root:gsub("(.)/+$", "%1")
  opts.loader, opts.extensions = opts.loader or self.loader, opts.extensions or self.extensions
  if not opts.loader then fail("%s: loader is required: {loader = function(path) … end} returns a sample", who) end
  if core.file_kind(self.root) ~= "a folder" then
    fail("%s: root must be a folder with one folder for each class; '%s' is %s", who, self.root,
      core.file_kind(self.root) or "not there")
  end
  records.begin(self, opts.on_error)
  self.loader, self.transform, self.target_transform = opts.loader, opts.transform, opts.target_transform
  self.base = opts.base
  local suffixes, counts = opts.is_valid_file and {} or suffixes_of(who, opts.extensions)
  self.classes, self.text, self.spans, self.targets, counts = core.scan_folder(self.root, suffixes)
  if #self.classes == 0 then fail("%s: '%s' has no folders; each class needs one", who, self.root) end
  if opts.is_valid_file then sieve(self, counts, opts.is_valid_file) end
  self.class_to_idx = {}
  local empty = {}
  for k, name in ipairs(self.classes) do
    self.class_to_idx[name] = k - 1 + opts.base
    if counts[k] == 0 then empty[#empty + 1] = name end
  end
  if #empty > 0 and not opts.allow_empty then
    fail("%s: no valid file in the classes %s of '%s'%s; pass {allow_empty = true} to keep empty classes", who,
      table.concat(empty, ", "):sub(1, 200), self.root,
      #suffixes > 0 and (" (of %s)"):format(table.concat(suffixes, ", ")) or "")
  end
  self.targets:add_(opts.base)
  core.keep {self.text, self.spans, self.targets}
  self.samples = samples_of(self)
  self.imgs = self.samples
end

local common = [[base: integer = 1, on_error = "raise" | "skip"})]]
DatasetFolder.init = signature.of([[(root: string, {loader: function, extensions, transform: callable,
  target_transform: callable, is_valid_file: function, allow_empty = false, ]] .. common, set_up)

function DatasetFolder:len() return self.spans.shape[1] end

--- Returns the path of file i.
function DatasetFolder:file_of(i) return self.root .. "/" .. core.span_text(self.text, self.spans, self:index(i)) end

--- Loads a file, and applies the transform.
function DatasetFolder:load(path)
  return results_as_list.apply(self, "transform", results_as_list.of_sample("loader", self.loader(path)))
end

local function read(self, i) return results_as_list.of_sample("load", self:load(self:file_of(i))), self.targets[i] end

function DatasetFolder:get(i)
  local value, target = records.sample(self, self:index(i), read)
  return value, results_as_list.apply(self, "target_transform", target)
end

--- data.ImageFolder(…): Loads a dataset of images in folders, one folder for each class: root/class/…/image.png.
local ImageFolder = class.define("ImageFolder", DatasetFolder)
ImageFolder.extensions = lists.parts(core.image_endings())
ImageFolder.init = signature.of([[(root: string, {transform: callable, target_transform: callable, loader: function,
  is_valid_file: function, allow_empty = false, extensions, ]] .. common, set_up)

--- Opens the file as a vision.Encoded; the `loader` option replaces this function.
function ImageFolder.loader(path) return decoding.open(path) end

function ImageFolder:load(path)
  local value = results_as_list.of_sample("loader", self.loader(path))
  if decoding.is_encoded(value) then return decoding.finish(value, self.transform) end
  return results_as_list.apply(self, "transform", value)
end

return {DatasetFolder = DatasetFolder, ImageFolder = ImageFolder}
