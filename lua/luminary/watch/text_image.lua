--- text_image: Draws images on the terminal: by half blocks with 24-bit colors if supported, two pixels in each
--- character; otherwise by characters of more and less ink.
local io = require "io"
local core = require "luminary.core"
local terminal = require "luminary.base.terminal"

local text_image = {}

local INK = " .:-=+*#%@" -- characters from dark to light, on a dark background
local LUMINANCE = {0.299, 0.587, 0.114} -- ITU-R BT.601

-- Resizes [C, H, W]: enlarges by the nearest pixel, without blur, and shrinks with antialiasing.
local function resized(image, height, width)
  local is_smaller = height < image.shape[2] or width < image.shape[3]
  local opts = {size = {height, width}, mode = is_smaller and "bilinear" or "nearest", antialias = is_smaller}
  return require("luminary.nn.functional").interpolate(image:unsqueeze(1), opts):select(1, 1)
end

-- Returns [3, H, W] from [1, H, W] (gray), [3, H, W], or [4, H, W], whose last channel is opacity, over black.
local function opaque(image)
  local channels = image.shape[1]
  if channels == 4 then return image:narrow(1, 1, 3) * image:narrow(1, 4, 1) end
  return channels == 1 and image:expand(3, -1, -1) or image
end

local function rounded(x) return math.floor(x + 0.5) end

-- Returns lines of half blocks, whose foreground is the upper pixel and whose background the lower.
local function block_lines(image, columns)
  local _, height, width = unpack(image.shape)
  local w = math.min(width, columns)
  local h = math.max(rounded(height * w / width), 1)
  local pixels = resized(image, h, w):mul(255):add_(0.5):clamp_(0, 255):floor_():totable()
  local function color(y, x) return ("%d;%d;%d"):format(pixels[1][y][x], pixels[2][y][x], pixels[3][y][x]) end
  local lines = {}
  for y = 1, h, 2 do
    local parts, last = {}, nil
    for x = 1, w do
      local code = "\27[38;2;" .. color(y, x) .. (y < h and ";48;2;" .. color(y + 1, x) or "") .. "m"
      parts[x] = (code ~= last and code or "") .. "▀"
      last = code
    end
    lines[#lines + 1] = table.concat(parts) .. "\27[0m"
  end
  return lines
end

-- Returns lines of characters, two for each pixel if there is room, since a character is twice as high as wide.
local function ink_lines(image, columns)
  local _, height, width = unpack(image.shape)
  local w = math.min(2 * width, columns)
  local h = math.max(rounded(height * w / width / 2), 1)
  local weights = core.tensor(LUMINANCE, {dtype = "float32"}):view(3, 1, 1)
  local gray = resized((image * weights):sum(1, {keepdim = true}), h, w):totable()[1]
  local lines = {}
  for y, row in ipairs(gray) do
    local parts = {}
    for x, value in ipairs(row) do
      local level = math.max(1, math.min(#INK, math.floor(value * #INK) + 1))
      parts[x] = INK:sub(level, level)
    end
    lines[y] = table.concat(parts):gsub(" +$", "")
  end
  return lines
end

--- Draws an image of floats from 0 to 1 on standard output: [1, H, W], [3, H, W] or [4, H, W]. It is at most as wide
--- as the terminal.
function text_image.draw(image)
  local columns = terminal.size() - 1
  local lines = (terminal.has_true_color() and block_lines or ink_lines)(opaque(image:float()), columns)
  io.stdout:write(table.concat(lines, "\n"), "\n")
end

return text_image
