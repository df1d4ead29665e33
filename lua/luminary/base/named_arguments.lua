--- Arguments of functions that are written in Lua, as ops take them: by place, and by name in a table that comes last.
local options = require "luminary.base.options"

local fail = options.fail

-- local dim, index = read("index_copy", {{"dim", "integer"}, {"index", "tensor"}}, …): the values, checked. A row is
-- {name, kind}, {name, kind, default} or {name, kind, optional = true}.
return function(who, rows, ...)
  local places, n, named = {...}, select("#", ...), {}
  local last = places[n]
  if n > 0 and options.is_plain(last) and (type(next(last)) == "string" or next(last) == nil and n > #rows) then
    named, n = last, n - 1
  end
  if n > #rows then fail("%s: at most %d arguments, got %d", who, #rows + 1, n + 1) end
  local values, known = {}, {}
  for i, row in ipairs(rows) do
    local name, kind, default = row[1], row[2], row[3]
    known[name] = {kind}
    local v = named[name]
    if i <= n then v = places[i] end
    if v ~= nil then
      v = options.arg(who, name, v, kind)
    elseif default ~= nil then
      v = default
    elseif not row.optional then
      options.arg(who, name, nil, kind)
      fail("%s: %s is missing", who, name)
    end
    values[i] = v
  end
  options.check(who, named, known)
  return unpack(values, 1, #rows)
end
