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
      local kind = tds.Vec
      for k in pairs(v) do kind = type(k) == "number" and kind or tds.Hash end
      v = kind(v)
    end
    self[key] = v
  end
end
function Vec:__init(a, ...) fill(self, type(a) == "table" and not class.typename(a) and a or {a, ...}) end
function Hash:__init(list) fill(self, list or {}) end
Vec.insert, Vec.remove, Vec.sort, Vec.concat, Vec.unpack = table.insert, table.remove, table.sort, table.concat, unpack
function Vec:resize(n) for i = #self, n + 1, -1 do self[i] = nil end end -- removes the elements behind the first n
function Vec:concatstorage(...) return storage.new("int8"):string(self:concat(...)) end
function Hash:__len__()
  local n = 0
  for _ in pairs(self) do n = n + 1 end
  return n
end
for _, of in ipairs {Vec, Hash} do
  function of:write(file)
    file:writeLong(Hash.__len__(self))
    for k, v in pairs(self) do
      if of == Hash then file:writeObject(k) end
      file:writeObject(v)
    end
  end
  function of:read(file)
    for i = 1, file:readLong() do rawset(self, of == Hash and file:readObject() or i, file:readObject()) end
  end
  function of:__tostring__()
    local lines = {("%s[%d]{"):format(self.__typename, Hash.__len__(self))}
    for k, v in pairs(self) do lines[#lines + 1] = ("%s : %s"):format(tostring(k), tostring(v)) end
    return table.concat(lines, "\n") .. "\n}"
  end
end
tds.vec, tds.hash = tds.Vec, tds.Hash
return tds
