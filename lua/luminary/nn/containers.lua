--- Modules that hold modules by number. Children are called 0, 1, … in state_dict keys and in print, so
--- that PyTorch's files load; in Lua net[1] is the first and net[-1] the last. They are Lua lists: #net, ipairs(net),
--- table.insert(net, m), table.remove(net, 1) do what they do, and after net[2] = nil the others move up when net is
--- next used.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local fused = require "luminary.nn.fused"
local Module = require "luminary.nn.module"
local records = require "luminary.nn.record"

local containers = {}

local function check_module(who, position, v)
  if not Module.is_module(v) then
    options.fail("%s: argument %d has to be a module, got %s%s", who, position, options.describe(v),
      type(v) == "function" and "; nn has modules that call such functions, nn.ReLU() for F.relu"
      or options.is_plain(v) and "; unpack(list) gives those of a list" or "")
  end
end

local Numbered = class.define("Numbered", Module)
Numbered.numbered = true

--- How many children; the same as #net.
function Numbered:len() return #self:children() end

--- for i, child in net:iter() do
function Numbered:iter() return ipairs(self:children()) end

--- Add a module at the end; gives the container.
function Numbered:append(module)
  check_module(self.__name .. ".append", 1, module)
  self[self:len() + 1] = module
  return self
end

--- Torch7's name for append.
function Numbered:add(module) return self:append(module) end

--- Torch7's net:get(i), which is net[i].
function Numbered:get(i) return self[i] end

-- Modules one by one, as most containers are given them.
function Numbered:init(...)
  for i = 1, select("#", ...) do
    local module = select(i, ...)
    check_module(self.__name, i, module)
    self[i] = module
  end
end

--- nn.Sequential(a, b, …): calls one after the other.
local Sequential = class.define("Sequential", Numbered)
containers.Sequential = Sequential

function Sequential:forward(x)
  records.of(self) -- which checks what the list holds
  local i = 1
  while i <= #self do
    local module, after = rawget(self, i), rawget(self, i + 1)
    if after and fused.is_norm_relu(module, after) then
      x, i = fused.norm_relu(module, x), i + 2
    else
      x, i = module(x), i + 1
    end
  end
  return x
end

--- nn.ModuleList{a, b, …}: a list whose modules are registered.
local ModuleList = class.define("ModuleList", Numbered)
containers.ModuleList = ModuleList

function ModuleList:init(list, ...)
  if list == nil then return end
  if not options.is_plain(list) or select("#", ...) > 0 then
    options.fail("ModuleList: a list of modules wanted, nn.ModuleList{a, b}, got %s", options.describe(list))
  end
  for i, module in ipairs(list) do
    check_module("ModuleList", i, module)
    self[i] = module
  end
end

--- Put a module before position `at`; gives the list.
function ModuleList:insert(at, module)
  local modules = self:children()
  options.arg("ModuleList.insert", "the position", at, "count")
  check_module("ModuleList.insert", 2, module)
  if at > #modules + 1 then options.fail("ModuleList.insert: position %d, but there are %d modules", at, #modules) end
  table.insert(modules, at, module)
  for i, m in ipairs(modules) do self[i] = m end
  return self
end

--- Runs of equal modules print as one line, as in PyTorch.
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
