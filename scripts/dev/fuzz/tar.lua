-- Mutated tar archives, read as WebDataset reads them.
local bytes = require "scripts.dev.fuzz.bytes"
local lm = require "luminary"
local tar = require "spec.support.tar"
local replace, damage, cut, gzip_stored, pick, random =
  bytes.replace, bytes.damage, bytes.cut, bytes.gzip_stored, bytes.pick, math.random

-- Returns a header with its correct sum.
local function with_sum(block)
  local sum = 8 * 32
  block = (block .. ("\0"):rep(512)):sub(1, 512)
  for i = 1, 512 do
    if i <= 148 or i > 156 then sum = sum + block:byte(i) end
  end
  return replace(block, 149, 156, ("%06o\0 "):format(sum))
end

local fields = { { 1, 100 }, { 125, 136 }, { 157, 157 }, { 258, 265 }, { 346, 500 } } -- name, size, kind, magic, prefix
local field_values = {
  "", "a.txt", "\128\0\0\0\0\0\0\0\0\0\0\5", "\255", "00000000000\0", "00000000777\0", "77777777777\0", " 12 ", "9",
  "\128\0\0\0\255\255\255\255\255\255\255\255", "x", "L", "g", "5", "2", "S", "\0", "ustar\00000", ("n"):rep(155),
}
local function change_header(block)
  local field = pick(fields)
  if random(3) == 1 then return with_sum(damage(block, field[1], field[2])) end
  local value = pick(field_values):sub(1, field[2] - field[1] + 1)
  return with_sum(replace(block, field[1], field[1] + #value - 1, value))
end

local keys, endings = { "a", "b", "folder/c", "0001", "" }, { "txt", "json", "cls", "TXT", "bin", "x.json", "" }
local bodies = { "1", "x", "", '{"a": [1, 2]}', '{"a":', "null", ("data"):rep(300), "-7", "9999999999999999999999" }

local function change_tar()
  local out = {}
  for i = 1, random(2, 6) do
    local name, text = pick(keys) .. "." .. pick(endings), pick(bodies)
    local kind = random(9)
    local member = tar.member(name, text)
    if kind == 1 then member = tar.gnu_member(("long/"):rep(random(60)) .. name, text) end
    if kind == 2 then member = tar.pax_member(("pax/"):rep(random(60)) .. name, text) end
    if kind == 3 then member = tar.member("folder", "", { kind = "5" }) .. member end
    if kind == 4 then
      local record = pick { "9 size=1\n", "12 path=a.b\n", "0 x=1\n", "99999 x=1\n", "12 size=9999\n", "6 x=\n\n", "x" }
      member = tar.member("pax", damage(record), { kind = "x" }) .. member
    end
    if i > 1 and random(4) == 1 then member = change_header(member:sub(1, 512)) .. member:sub(513) end
    if i > 1 and random(10) == 1 then member = damage(member) end
    out[i] = member
  end
  local whole = table.concat(out) .. tar.ending
  local kind = random(10)
  if kind == 1 then whole = cut(whole) end
  if kind == 2 then whole = damage(whole) end
  if kind <= 4 and #whole < 65536 then
    whole = gzip_stored(whole)
    if kind == 4 then whole = pick { damage(whole, 600), cut(whole), whole .. "x" } end
  end
  return whole
end

local function load_tar(path)
  local set = lm.data.WebDataset(path, { on_error = pick { "raise", "skip" }, null = random(2) == 1 or nil })
  local samples = {}
  for sample in set:iter() do samples[#samples + 1] = sample end
  return samples
end

return {
  name = "tar", share = 1, change = change_tar, load = load_tar,
  past = function(message) return not message:find "at byte 0[: ]" end,
}
