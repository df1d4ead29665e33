--- Reads Krizhevsky's sets of small images (https://www.cs.toronto.edu/~kriz/cifar.html): the binary version, records
--- of one or two labels and 3 x 32 x 32 bytes, and Python's, pickles with lists of labels and an array of such bytes.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Images = require "luminary.data.images_in_memory"
local records = require "luminary.data.files_and_bad_records"
local pickle = require "luminary.file_formats.pickle"
local python_values = require "luminary.file_formats.python_values"
local Source = require "luminary.file_formats.source"
local Tar = require "luminary.file_formats.tar"
local fail = options.fail

local PIXELS = 3 * 32 * 32

--- data.CIFAR10(…): Loads the CIFAR-10 dataset of 32 x 32 color images. Krizhevsky, "Learning Multiple Layers of
--- Features from Tiny Images", 2009.
local CIFAR10 = class.define("CIFAR10", Images)
CIFAR10.folders = {"", "/cifar-10-batches-bin", "/cifar-10-batches-py", "/cifar-10", "/cifar10", "/CIFAR10"}
CIFAR10.files = { -- the binary version adds .bin
  train = {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"}, test = {"test_batch"},
}
CIFAR10.archives = {"cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"}
CIFAR10.remedy = "put cifar-10-binary.tar.gz or cifar-10-python.tar.gz or the files in it in one of them, or name "
  .. "their folder by root"
CIFAR10.classes = lists.parts "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR10.labels_of = {10} -- number of classes of each of a record's labels
CIFAR10.label_keys = {"labels"} -- their keys in a pickle

--- data.CIFAR100(…): Loads the CIFAR-100 dataset of 32 x 32 color images. Krizhevsky, "Learning Multiple Layers of
--- Features from Tiny Images", 2009.
local CIFAR100 = class.define("CIFAR100", CIFAR10)
CIFAR100.folders = {"", "/cifar-100-binary", "/cifar-100-python", "/cifar-100", "/cifar100", "/CIFAR100"}
CIFAR100.files = {train = {"train"}, test = {"test"}}
CIFAR100.archives = {"cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"}
CIFAR100.remedy = CIFAR10.remedy:gsub("10", "100")
CIFAR100.labels_of = {20, 100}
CIFAR100.label_keys = {"coarse_labels", "fine_labels"}
CIFAR100.classes = lists.parts [[
  apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
  caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
  forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
  mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
  possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
  sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
  willow_tree wolf woman worm]]
CIFAR100.coarse_classes = lists.parts [[
  aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
  insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
  medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2]]

-- Returns the wanted files of an archive, by name.
local function unpacked(set, path, names)
  local wanted, found = lists.set(names), {}
  local archive = Tar.open(path)
  for member in archive.next, archive do
    local name = member:match "[^/]*$"
    if wanted[name] then found[name] = core.bytes_tensor(archive:read()) end
  end
  archive:close()
  local missing = lists.find(names, function(name) return not found[name] end)
  if missing then fail("%s: '%s' has no file %s", set.__name, path, missing) end
  return found
end

-- Returns the records of a pickle as the binary version has them.
local function unpickled(set, path, bytes)
  local source = Source.over(bytes, path, {})
  local dict, lost = pickle.load(source:cursor(0), function(name) return python_values[name] end,
    function(_, machine) machine:fail "a persistent id" end)
  local columns, data = {}, options.is_plain(dict) and dict.data
  if not core.is_tensor(data) or data.dtype ~= "uint8" or data:dim() ~= 2 or data.shape[2] ~= PIXELS or #data == 0 then
    source:fail("expected 'data' to be uint8 [N, %d], got %s%s", PIXELS, options.describe(data or nil),
      lost[1] and (": '%s': %s"):format(lost[1].path, lost[1].lost.why) or "")
  end
  for k, key in ipairs(set.label_keys) do
    local ok, list = pcall(core.tensor, dict[key], {dtype = "int64"})
    if not ok or list:dim() ~= 1 or #list ~= #data or list:min():item() < 0 or list:max():item() > 255 then
      source:fail("expected '%s' to be a list of %d classes from 0", key, #data)
    end
    columns[k] = list:to("uint8"):view(-1, 1)
  end
  columns[#columns + 1] = data
  return core.ops.cat(columns, 2)
end

-- Returns the records of a file, uint8 [N, labels and pixels].
local function rows_of(set, path, bytes)
  local width, n = #set.labels_of + PIXELS, bytes.shape[1]
  local is_pickle = n > 0 and bytes[1] == 128 -- a pickle begins with 128, which is no label
  if n == 0 or n % width ~= 0 and not is_pickle then
    fail("%s: '%s' has %d bytes, not a multiple of the record size %d: it is truncated, or of another dataset",
      set.__name, path, n, width)
  end
  local rows = is_pickle and unpickled(set, path, bytes) or bytes:view(-1, width)
  for k, classes in ipairs(set.labels_of) do
    local bad = core.ops.nonzero(rows:select(2, k):ge(classes)):view(-1)
    if #bad > 0 and set.on_error == "raise" then
      local first = bad[1]
      fail("%s: '%s': record %d has label %d; labels must be from 0 to %d", set.__name, path, first, rows[{first, k}],
        classes - 1)
    elseif #bad > 0 then
      set.faults:add_(#bad)
      rows = rows:index_select(1, core.ops.nonzero(rows:select(2, k):lt(classes)):view(-1))
    end
  end
  return rows
end

local function set_up(self, opts)
  records.begin(self, opts.on_error)
  local plain, binary = self.files[opts.train and "train" or "test"], self.archives[1]
  local path = records.find(self, opts.root, {plain[1] .. ".bin", binary, plain[1], self.archives[2]})
  local ending = (path:find "%.bin$" or path:sub(-#binary) == binary) and ".bin" or ""
  local folder, images, labels = path:match "^(.*/)[^/]*$", {}, {}
  local column = opts.coarse and 1 or #self.labels_of
  local names = lists.map(plain, function(name) return name .. ending end)
  local archive = path:find "%.tar%.gz$" and unpacked(self, path, names)
  for i, name in ipairs(names) do
    local file = archive and path .. ": " .. name or folder .. name
    local rows = rows_of(self, file, archive and archive[name] or records.bytes_of(file))
    labels[i] = rows:select(2, column):to("int64")
    images[i] = rows:narrow(2, #self.labels_of + 1, PIXELS)
  end
  if opts.coarse then self.classes = self.coarse_classes end
  self:hold(core.ops.cat(images):view(-1, 3, 32, 32), core.ops.cat(labels), opts)
end

CIFAR10.init = signature.of("({" .. Images.options .. [[, on_error = "raise" | "skip"})]], set_up)
CIFAR100.init = signature.of("({" .. Images.options .. [[, coarse = false, on_error = "raise" | "skip"})]], set_up)

return {CIFAR10 = CIFAR10, CIFAR100 = CIFAR100}
