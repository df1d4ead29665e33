--- Implements the functions of Torch7's package xlua that scripts use.
local options = require "luminary.base.options"
local progress = require "luminary.watch.progress"

local xlua, bar, at = {}, nil, 0

--- xlua.progress(i, n): Shows step i of n on a line of the terminal, which ends with i = n.
function xlua.progress(i, n)
  i = math.floor(options.arg("xlua.progress", "i", i, "number"))
  n = math.max(math.floor(options.arg("xlua.progress", "n", n, "number")), 1)
  if not bar or bar.total ~= n or i < at then bar = progress.new(n, math.max(i - 1, 0)) end
  at = i
  bar:update(i)
  if i >= n then bar = nil end
end

--- Returns seconds in their two largest units, such as "1h2m" or "3s500ms".
function xlua.formatTime(seconds)
  local left, parts = math.floor(options.arg("xlua.formatTime", "seconds", seconds, "number") * 1000), {}
  for _, unit in ipairs {{"D", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}} do
    local n = math.floor(left / unit[2])
    if n > 0 and #parts < 2 then parts[#parts + 1] = n .. unit[1] end
    left = left - n * unit[2]
  end
  return parts[1] and table.concat(parts) or "0ms"
end

--- xlua.envparams(defaults): Returns a table with the values of environment variables of these names, as the defaults'
--- types.
function xlua.envparams(defaults)
  local params = {}
  for name, default in pairs(options.arg("xlua.envparams", "defaults", defaults, "table")) do
    local text = os.getenv(name)
    if text == nil then
      params[name] = default
    elseif type(default) == "boolean" then
      params[name] = text == "true" or text == "1"
    else
      params[name] = type(default) == "number" and tonumber(text) or text
    end
  end
  return params
end

--- xlua.require(name): Requires a package; returns false if it is not there.
function xlua.require(name)
  local ok, package_table = pcall(require, name)
  return ok and package_table
end
function xlua.error(message, domain) options.fail("%s%s", domain and "<" .. domain .. "> " or "", message) end

return xlua
