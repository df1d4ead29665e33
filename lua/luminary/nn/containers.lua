--- Defines containers, modules that hold modules by number. Children are named 0, 1, … in state_dict keys and in print,
--- so that PyTorch's files load; in Lua net[1] is the first and net[-1] the last. They are Lua lists: #net,
--- ipairs(net), table.insert(net, m) and table.remove(net, 1) work. After net[2] = nil the next use closes the gap.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local load_module = require "luminary.base.load_module"
local Module = require "luminary.nn.module"
local records = require "luminary.nn.module_fields"

local containers = {}

local function check_module(who, position, v)
  if options.is_plain(v) then options.list(who, "modules", v) end
  if not Module.is_module(v) then
    options.must_be(who, "argument " .. position, "a module", v,
      type(v) == "function" and "nn has modules for such functions: nn.ReLU() for F.relu"
        or options.is_plain(v) and "unpack(list) passes those of a list" or nil)
  end
end

local Numbered = class.define("Numbered", Module)
Numbered.numbered = true

--- Returns the number of modules, as #net does.
function Numbered:len() return #self:children() end

--- Walks the modules: for i, child in net:iter() do.
function Numbered:iter() return ipairs(self:children()) end

--- Adds a module at the end. Returns the container.
function Numbered:append(module)
  check_module(self.__name .. ".append", 1, module)
  if not records.append(self, getmetatable(self), module) then self[self:len() + 1] = module end
  return self
end

--- Inserts a module before position `at`. Returns the container.
function Numbered:insert(at, module)
  local who, modules = self.__name .. ".insert", self:children()
  options.arg(who, "the position", at, "count")
  check_module(who, 2, module)
  if at > #modules + 1 then options.must_be(who, "position", ("from 1 to %d"):format(#modules + 1), at) end
  table.insert(self, at, module)
  records.of(self)
  return self
end

--- Adds the modules of a list, or of another container, at the end. Returns the container. (extend makes a class.)
function Numbered:append_all(list)
  if Module.is_module(list) then list = list:children() end
  if not options.is_plain(list) then options.expected(self.__name .. ".append_all", "a list of modules", list) end
  for _, module in ipairs(options.list(self.__name .. ".append_all", "modules", list)) do self:append(module) end
  return self
end

--- Removes the module at a position, or the last one, and returns it.
function Numbered:pop(at)
  local module = self[at or -1]
  table.remove(self, at and (at < 0 and self:len() + at + 1 or at) or self:len())
  return module
end

--- Returns a new container of the modules from `first` (1) to `last` (-1); net[{1, 2}] is net:slice(1, 2).
function Numbered:slice(first, last)
  local who, modules, part = self.__name .. ".slice", self:children(), {}
  first, last = options.arg(who, "first", first or 1, "integer"), options.arg(who, "last", last or -1, "integer")
  if first < 0 then first = #modules + first + 1 end
  if last < 0 then last = #modules + last + 1 end
  if first < 1 or last > #modules then
    options.fail("%s: modules %d to %d are out of range; there are %d", who, first, last, #modules)
  end
  local names, pairs_of, named = records.of(self).child, {}, false
  for i = first, last do
    local name = names[i]
    part[#part + 1], pairs_of[#part + 1], named = modules[i], {name, modules[i]}, named or not name:find "^%d+$"
  end
  if self:is(containers.ModuleList) then return containers.ModuleList(part) end
  return named and containers.Sequential(pairs_of) or containers.Sequential():append_all(part)
end

-- Sets module i. It skips a loader's report after a net, as in nn.Sequential(lm.models.gpt2 {weights = …}).
local function put(self, i, module, is_last)
  if is_last and options.is_report(module) then return end
  check_module(self.__name, i, module)
  self[i] = module
end

-- Adds modules passed as separate arguments.
function Numbered:init(...)
  local n, list = select("#", ...), {...}
  for i = 1, n do put(self, i, list[i], i > 1 and i == n) end
end

--- nn.Sequential(a, b, …): Applies modules in sequence.
local Sequential = class.define("Sequential", Numbered)
containers.Sequential = Sequential

function Sequential:init(...)
  local named = ...
  if select("#", ...) == 1 and options.is_plain(named) and options.is_plain(named[1]) then
    for i, pair in ipairs(options.list("Sequential", "modules", named)) do
      if not options.is_plain(pair) or type(pair[1]) ~= "string" or not Module.is_module(pair[2]) then
        options.must_be("Sequential", ("entry %d"):format(i), "{name, module}", pair)
      end
      self:add_module(pair[1], pair[2])
    end
    return
  end
  Numbered.init(self, ...)
end

function Sequential:forward(x)
  records.of(self) -- checks the list's entries
  local loaded = package.loaded
  local fused = (loaded["luminary.nn.norm"] or loaded["luminary.nn.pooling"]) and load_module "luminary.nn.fuse_layers"
  local i, argument = 1, x
  while i <= #self do
    local module, after, before = rawget(self, i), rawget(self, i + 1), x
    local both = fused and after and fused.pair(module, after, i == 1)
    if both then
      x, i = both(x), i + 2
    else
      x, i = module(x), i + 1
    end
    if before ~= argument then core.free_intermediate(before, x) end
  end
  return x
end

--- nn.ModuleList([{a, b, …}]): Holds modules in a list.
local ModuleList = class.define("ModuleList", Numbered)
containers.ModuleList = ModuleList

function ModuleList:init(list, ...)
  if list == nil then return end
  if not options.is_plain(list) or select("#", ...) > 0 then
    options.expected("ModuleList", "a list of modules, nn.ModuleList{a, b}", list)
  end
  options.list("ModuleList", "modules", list)
  for i, module in ipairs(list) do put(self, i, module, i > 1 and list[i + 1] == nil) end
end

--- Returns the text of the list, in which runs of equal modules are one line, as in PyTorch.
function ModuleList:repr()
  local lines, first = {}, 1
  local modules = self:children()
  for i = 1, #modules do
    local text = modules[i]:repr()
    if i == #modules or modules[i + 1]:repr() ~= text then
      local name = first == i and ("(%d): "):format(i - 1)
        or ("(%d-%d): %d x "):format(first - 1, i - 1, i - first + 1)
      lines[#lines + 1] = "  " .. name .. text:gsub("\n", "\n  ")
      first = i + 1
    end
  end
  return #lines == 0 and self.__name .. "()" or ("%s(\n%s\n)"):format(self.__name, table.concat(lines, "\n"))
end

return containers
