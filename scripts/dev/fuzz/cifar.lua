-- Mutated records of CIFAR's and pickles of such, by themselves and in an archive.
local bytes = require "scripts.dev.fuzz.bytes"
local lm = require "luminary"
local tar = require "spec.support.tar"
local replace, damage, cut, gzip_stored, pick, random =
  bytes.replace, bytes.damage, bytes.cut, bytes.gzip_stored, bytes.pick, math.random

-- Returns a file of the version for Python 2 with n images.
local function pickled(n)
  local labels = {}
  for i = 1, n do labels[i] = "K" .. string.char(random(0, 9)) end
  return "\128\2}q\1(U\6labels](" .. table.concat(labels) .. "eU\4datacnumpy.core.multiarray\n_reconstruct\n"
    .. "cnumpy\nndarray\nK\0\133U\1b\135R(K\1K" .. string.char(n) .. "M\0\12\134cnumpy\ndtype\nU\2u1K\0K\1\135R(K\3"
    .. "U\1|NNNJ\255\255\255\255J\255\255\255\255K\0tb\137T" .. bytes.little_endian(3072 * n, 4) .. ("x"):rep(3072 * n)
    .. "tbu."
end

local function change_pickle()
  local text = pickled(random(3))
  for _ = 1, random(2) do
    local at = random(4) == 1 and random(#text) or random(250) -- mostly what is not the pixels
    local change = pick { "0", "(", "N", "b", "t", "}", "]", "e", "s", "u", ".", "\133", "q\0", "h\1", "K\255", "\255" }
    text = replace(text, at, at + #change - 1, change)
  end
  if random(4) == 1 then text = cut(text) end
  return text
end

local function change_cifar()
  if random(4) == 1 then return change_pickle(), "test_batch" end
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
  past = function(message) return message:find "record %d" or message:find "test_batch'" end,
}
