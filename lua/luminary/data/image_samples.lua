--- Images as samples of sets.
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local results_as_list = require "luminary.base.results_as_list"

local decoding = {}

local function vision() return load_module "luminary.vision" end -- loaded once images are met

--- An image file whose pixels are not read yet.
function decoding.open(path) return vision().open_image(path) end

--- The same of a file's bytes; `name` is what messages call it.
function decoding.encoded(bytes, name) return vision().Encoded(bytes, {name = name}) end

function decoding.is_encoded(v) return class.record(v) ~= nil and class.is(v, vision().Encoded) end

--- The sample, one value: what a transform makes of the image, or float32 in [0, 1].
function decoding.finish(encoded, transform)
  if class.has(transform, "from_encoded") then
    return results_as_list.of_sample("transform", transform:from_encoded(encoded, {mode = "rgb"}))
  end
  local image = encoded:decode {mode = "rgb"}
  if transform then return results_as_list.of_sample("transform", transform(image)) end
  return image:to("float32"):div_(255)
end

return decoding
