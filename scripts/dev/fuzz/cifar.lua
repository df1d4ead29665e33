-- Mutated records of CIFAR's, by themselves and in an archive.
local bytes = require "scripts.dev.fuzz.bytes"
local lm = require "luminary"
local tar = require "spec.support.tar"
local replace, damage, cut, gzip_stored, pick, random =
  bytes.replace, bytes.damage, bytes.cut, bytes.gzip_stored, bytes.pick, math.random

local function change_cifar()
  local out = {}
  for i = 1, random(3) do out[i] = string.char(random(0, 9)) .. string.char(random(0, 255)):rep(3072) end
  local text = table.concat(out)
  local kind = random(6)
  if kind == 1 then text = cut(text) end
  if kind == 2 then text = damage(text) end
  if kind == 3 then
    local at = 3073 * random(0, #out - 1) + 1
    text = replace(text, at, at, string.char(random(0, 255)))
  end
  if random(2) == 1 then return text, "test_batch.bin" end
  local archive = tar.member("cifar/readme.html", "x") .. tar.member("cifar/test_batch.bin", text) .. tar.ending
  if random(4) == 1 then archive = pick { damage(archive), cut(archive) } end
  if random(2) == 1 then archive = gzip_stored(archive) end
  return archive, "cifar-10-binary.tar.gz"
end

local function load_cifar(path)
  local set = lm.data.CIFAR10 { root = path:match "^(.*)/", train = false, on_error = pick { "raise", "skip" } }
  return { set.images, set.labels }
end

return {
  name = "CIFAR", share = 1, change = change_cifar, load = load_cifar,
  past = function(message) return message:find "record %d" end,
}
