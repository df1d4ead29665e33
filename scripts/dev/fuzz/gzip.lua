-- Mutated gzip files that hold IDX, mutated too.
local bytes = require "scripts.dev.fuzz.bytes"
local idx = require "scripts.dev.fuzz.idx"
local temp = require "spec.support.temp"
local damage, cut, gzip_stored, random_bytes, pick, random =
  bytes.damage, bytes.cut, bytes.gzip_stored, bytes.random_bytes, bytes.pick, math.random

local function gzipped(text)
  local folder = temp.folder()
  temp.write(folder .. "/valid", text)
  assert(os.execute(("gzip %s/valid"):format(folder)) == 0)
  local packed = temp.read(folder .. "/valid.gz")
  temp.remove(folder)
  return packed
end
local valid = gzipped(idx.idx({ 3, 4, 5 }, random_bytes(60)))

local function change()
  local kind = random(5)
  if kind == 1 then return damage(valid) end
  if kind == 2 then return cut(valid) end
  local whole = gzip_stored(idx.change())
  if kind == 3 then
    return pick { damage(whole, 11), damage(whole, #whole - 7), whole .. "x", whole .. whole, cut(whole) }
  end
  return whole
end

return {
  name = "gzipped IDX", share = 1, change = change, load = idx.load,
  past = function(message)
    return idx.past(message) or message:find "incorrect %a+ check" or message:find "unexpected end of file"
  end,
}
