--- A small set of images in MNIST's files, where a training's length is of no interest: testing alone would go through
--- ten thousand. Each class has a bright stripe at another position in noise.
---   images.write(folder, 512, 64)      -- that many to train with and to test on; give it to a script as --data
local temp = require "spec.support.temp"

local images = {}

local function big_endian(...)
  local text = ""
  for _, n in ipairs { ... } do text = text .. string.char(0, 0, math.floor(n / 256), n % 256) end
  return text
end

function images.write(folder, train, test)
  for part, n in pairs { train = train, t10k = test } do
    local pictures, labels, noise = {}, {}, n
    for i = 1, n do
      local rows = {}
      for row = 0, 27 do
        noise = noise * 16807 % (2 ^ 31 - 1)
        local from = noise % 100
        local light = math.floor(row / 2.8) == i % 10 and 150 or 0
        local pixels = {}
        for column = 1, 28 do pixels[column] = string.char(light + (from + column * 7) % 100) end
        rows[row + 1] = table.concat(pixels)
      end
      pictures[i], labels[i] = table.concat(rows), string.char(i % 10)
    end
    local at = folder .. "/" .. part
    temp.write(at .. "-images-idx3-ubyte", "\0\0\8\3" .. big_endian(n, 28, 28) .. table.concat(pictures))
    temp.write(at .. "-labels-idx1-ubyte", "\0\0\8\1" .. big_endian(n) .. table.concat(labels))
  end
end

return images
