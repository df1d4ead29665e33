--- Implements Torch7's package tds in plain Lua: Vec and Hash are tables, so that their memory is Lua's, and `#` counts
--- what it counts of tables: use vectors without nil, and pairs to count a Hash.
local class = require "luminary.torch7.class"
local storage = require "luminary.torch7.storage"
local tds = {}
local Vec, Hash = class.new("tds.Vec", tds), class.new("tds.Hash", tds)

-- Copies the fields of a table; tables in it become a Vec, if they have only numbers as keys, or a Hash.
local function fill(self, list)
  for key, v in pairs(list) do
    if type(v) == "table" and not getmetatable(v) then
      local is_vec = true
      for k in pairs(v) do is_vec = is_vec and type(k) == "number" end
      v = (is_vec and tds.Vec or tds.Hash)(v)
    end
    self[key] = v
  end
end
function Vec:__init(first, ...)
  fill(self, type(first) == "table" and not class.typename(first) and first or {first, ...})
end
function Hash:__init(list) fill(self, list or {}) end
Vec.insert, Vec.remove, Vec.sort, Vec.concat, Vec.unpack = table.insert, table.remove, table.sort, table.concat, unpack
--- Removes the elements behind the first n.
function Vec:resize(n) for i = #self, n + 1, -1 do self[i] = nil end end
--- Returns concat's text as a CharStorage.
function Vec:concatstorage(...) return storage.new("int8"):string(self:concat(...)) end
local function count(self)
  local n = 0
  for _ in pairs(self) do n = n + 1 end
  return n
end
Hash.__len__ = count
for _, of in ipairs {Vec, Hash} do
  function of:write(file)
    file:writeLong(count(self))
    for k, v in pairs(self) do
      if of == Hash then file:writeObject(k) end
      file:writeObject(v)
    end
  end
  function of:read(file)
    for i = 1, file:readLong() do
      local k = of == Hash and file:readObject() or i
      rawset(self, k, file:readObject())
    end
  end
  function of:__tostring__()
    local lines = {("%s[%d]{"):format(self.__typename, count(self))}
    for k, v in pairs(self) do lines[#lines + 1] = ("%s : %s"):format(tostring(k), tostring(v)) end
    return table.concat(lines, "\n") .. "\n}"
  end
end
tds.vec, tds.hash = tds.Vec, tds.Hash
return tds
