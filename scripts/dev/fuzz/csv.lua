-- Mutated tables.
local bytes = require "scripts.dev.fuzz.bytes"
local lm = require "luminary"
local replace, damage, cut, gzip_stored, pick, random =
  bytes.replace, bytes.damage, bytes.cut, bytes.gzip_stored, bytes.pick, math.random

local cells = {
  "1", "2.5", "-3e2", "0.1", "", "NA", "nan", '"4"', '"a ""b"""', '"two\nlines"', '"x,y"', "word", "1e400", "inf",
  '"', 'a"b', '""', '"""', " 7 ", "\0", "\255\254", ("9"):rep(200), "0." .. ("0"):rep(50) .. "1", "1e-9999999999", "\r",
}
local function change_csv()
  local width, rows = random(4), {}
  rows[1] = table.concat({ "a", "b", '"c ""d"""', "e" }, ",", 1, width)
  for i = 2, random(2, 8) do
    local row = {}
    for k = 1, width + (random(12) == 1 and random(-1, 1) or 0) do
      row[k] = random(3) > 1 and tostring(random(-99, 99) / 4) or pick(cells)
    end
    rows[i] = table.concat(row, ",")
  end
  local text = table.concat(rows, pick { "\n", "\n", "\r\n" }) .. pick { "", "\n", "\n\n", "\r" }
  local kind = random(6)
  if kind == 1 then return damage(text) end
  if kind == 2 then return cut(text) end
  if kind == 3 then return gzip_stored(text) end
  if kind == 4 then return replace(text, random(#text), 0, pick { '"', ",", "\n", "\0", '""' }) end
  return text
end

local function load_csv(path)
  local opts = { header = random(4) > 1, missing = pick { "nan", "error" } }
  opts.on_error = pick { "raise", "skip", "skip" }
  if random(2) == 1 then opts.label = 1 end
  if random(3) == 1 then opts.text = { 2 } end
  local set = lm.data.CSVDataset(path, opts)
  local samples = {}
  for i = 1, #set do samples[i] = { set:get(i) } end
  return samples
end

return {
  name = "CSV", share = 1, change = change_csv, load = load_csv,
  past = function(message) return tonumber(message:match "line (%d+)" or 0) > 1 or message:find "classes" end,
}
