--- Reads files of token ids.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local dataset = require "luminary.data.dataset"
local records = require "luminary.data.files_and_bad_records"
local fail = options.fail

--- data.TokenDataset(…): Loads blocks of tokens from a binary file of token ids, such as nanoGPT's train.bin.
local TokenDataset = class.define("TokenDataset", dataset.Dataset)
TokenDataset.__makes = "path"

local sizes = {uint8 = 1, int16 = 2, uint16 = 2, int32 = 4, uint32 = 4, int64 = 8}

TokenDataset.init = signature.of([[TokenDataset(path: string, {block_size: count, dtype: "uint8" | "int16" |
  "uint16" | "int32" | "uint32" | "int64" = "uint16", stride: count = block_size, base: integer = 1,
  vocab_size: count, offset: natural = 0, transform: callable})]], function(self, path, opts)
  self.path = path
  signature.assign(self, opts)
  if not self.block_size then fail("TokenDataset: block_size is required") end
  local item, _, bytes = sizes[self.dtype], records.source(self)
  if bytes < self.offset or (bytes - self.offset) % item ~= 0 then
    fail("TokenDataset: '%s' has %d bytes, not a multiple of the token size %d after an offset of %d", path, bytes,
      item, self.offset)
  end
  self.tokens = (bytes - self.offset) / item
  if self.tokens <= self.block_size then
    fail("TokenDataset: '%s' has %d tokens; block_size (%d) requires at least one more than block_size", path,
      self.tokens, self.block_size)
  end
end)

--- Returns true if there is a transform.
function TokenDataset:one_by_one() return self.transform ~= nil end

function TokenDataset:len() return math.floor((self.tokens - self.block_size - 1) / self.stride) + 1 end

-- Returns the samples of a 1-d int64 tensor of numbers, or of a list: x and y, int64 [N, block_size].
local function blocks(self, index)
  index = dataset.numbers("TokenDataset", index)
  return core.file_blocks(records.source(self), index, self.dtype, self.offset, self.block_size, self.stride,
    self.base, self.vocab_size or 0)
end

function TokenDataset:get(i)
  local x, y = blocks(self, core.tensor({self:index(i)}, {dtype = "int64"}))
  x, y = x:select(1, 1), y:select(1, 1)
  if self.transform then return self.transform(x, y) end
  return x, y
end

dataset.define_get_batch(TokenDataset, blocks)

return {TokenDataset = TokenDataset}
