-- Finds the files from which mutated images are made, and decodes those images.
local bytes = require "scripts.dev.fuzz.bytes"
local lm = require "luminary"
local pick, random = bytes.pick, math.random

local image = {}

--- Returns the specs' golden files of an ending, each its bytes.
function image.files(ending)
  local names, list, golden = {}, {}, lm.load "spec/golden/_images.safetensors"
  for name in pairs(golden) do
    if name:match "%.(%a+)$" == ending then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    local text = golden[name]:totable()
    for k, byte in ipairs(text) do text[k] = string.char(byte) end
    list[i] = table.concat(text)
  end
  return list
end

-- Pixels of the whole, of a part, at a scale. What is said when the header was read and the rest is wrong is `beyond`.
local function decode_image(path, text)
  local encoded = lm.vision.Encoded(text, { name = path, max_pixels = 1e6, allow_corrupt = random(3) > 1 })
  local opts = { mode = pick { "unchanged", "gray", "gray_alpha", "rgb", "rgba" } }
  if random(2) == 1 then
    local height, width = random(encoded.height), random(encoded.width)
    opts.crop = { random(0, encoded.height - height), random(0, encoded.width - width), height, width }
  end
  if random(3) == 1 then opts.at_least = { random(encoded.height), random(encoded.width) } end
  local ok, result = pcall(encoded.decode, encoded, opts)
  if encoded.format == "gif" and random(2) == 1 then
    local mode = pick { "gray", "rgb", "rgba" }
    ok, result = pcall(lm.vision.decode_gif, text, { name = path, max_pixels = 1e6, mode = mode })
    if ok then return result end
  end
  if ok then
    local want = opts.crop or { 0, 0, encoded.height, encoded.width }
    local min_size = opts.at_least and { math.min(opts.at_least[1], want[3]), math.min(opts.at_least[2], want[4]) }
      or { want[3], want[4] }
    if result.shape[2] < min_size[1] or result.shape[3] < min_size[2] or result.shape[2] > want[3]
      or result.shape[3] > want[4] then
      error("sizes that were not asked for: " .. tostring(result.shape))
    end
    return result
  end
  error("beyond: " .. tostring(result), 0)
end

--- Returns the format's row.
function image.format(name, change)
  return {
    name = name, share = 3, change = change, load = decode_image,
    past = function(message) return message:find "^beyond: " end,
  }
end

return image
