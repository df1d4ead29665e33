--- Reads IDX files, MNIST's format (http://yann.lecun.com/exdb/mnist), plain or gzipped: two zero bytes, the element
--- type (only 8, unsigned byte), the number of dims, each size in four bytes, big-endian, then the elements.
local core = require "luminary.core"
local options = require "luminary.base.options"
local malformed = options.malformed_file

local idx = {}

--- Returns the uint8 tensor of the file at a path. Allocates nothing if the file is too small for its elements.
function idx.load(path)
  local stream, most = core.stream_open(path)
  local function read_bytes(n)
    local text = core.stream_text(stream, n)
    if #text < n then options.fail_in_file(path, "truncated: %d bytes are missing", n - #text) end
    return text
  end
  local first, second, kind, ndim = read_bytes(4):byte(1, 4)
  if first ~= 0 or second ~= 0 then
    malformed(path, "IDX header at byte 0", "it must start with 00 00, got %02x %02x", first, second)
  end
  if kind ~= 8 then
    options.fail_in_file(path, "unsupported IDX element type 0x%02x; supported is 0x08, unsigned byte", kind)
  end
  if ndim < 1 or ndim > 8 then
    malformed(path, "IDX header at byte 3", "the number of dims must be from 1 to 8, got %d", ndim)
  end
  local shape, count = {}, 1
  for d = 1, ndim do
    local a, b, c, e = read_bytes(4):byte(1, 4)
    shape[d] = ((a * 256 + b) * 256 + c) * 256 + e
    count = count * shape[d]
  end
  if count > most then
    malformed(path, "IDX header at byte 4", "shape [%s] has more elements than fit in the file",
      table.concat(shape, ", "))
  end
  local elements = core.stream_bytes(stream, count)
  if core.stream_text(stream, 1) ~= "" then malformed(path, "IDX data", "bytes follow its %.0f elements", count) end
  core.stream_finish(stream)
  return elements:view(shape)
end

return idx
