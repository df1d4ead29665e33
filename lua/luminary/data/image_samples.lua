--- Converts images to samples of sets.
local class = require "luminary.base.class"
local load_module = require "luminary.base.load_module"
local results_as_list = require "luminary.base.results_as_list"

local decoding = {}

local function vision() return load_module "luminary.vision" end -- loaded at the first image

--- Opens an image file without decoding its pixels.
function decoding.open(path) return vision().open_image(path) end

--- Opens an image from a file's bytes without decoding its pixels; `name` is its name in messages.
function decoding.encoded(bytes, name) return vision().Encoded(bytes, {name = name}) end

function decoding.is_encoded(v) return class.record(v) ~= nil and class.is(v, vision().Encoded) end

--- Returns the sample, one value: the transform's result for the image, or float32 in [0, 1].
function decoding.finish(encoded, transform)
  if class.has(transform, "from_encoded") then
    return results_as_list.of_sample("transform", transform:from_encoded(encoded, {mode = "rgb"}))
  end
  local image = encoded:decode {mode = "rgb"}
  if transform then return results_as_list.of_sample("transform", transform(image)) end
  return image:to("float32"):div_(255)
end

return decoding
