--- Arranges the ranks of a job in a grid with a process group for each dim.
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local groups = require "luminary.distributed.groups"
local fail = options.fail

local Mesh = {}

-- Returns the index of a dim, from 1, that a name or a number selects; by default the only one.
local function dim_of(who, mesh, dim)
  if dim == nil and mesh.ndim == 1 then return 1 end
  local names = mesh.mesh_dim_names
  local found = type(dim) == "string" and names and lists.index_of(names, dim) or type(dim) == "number" and dim
  if not found or not mesh.shape[found] then
    options.must_be(who, "dim", names and "one of " .. table.concat(names, ", ") or "from 1 to " .. mesh.ndim, dim)
  end
  return found
end

--- Returns the number of ranks in the mesh, or in a dim of it.
function Mesh:size(dim)
  if dim ~= nil then return self.shape[dim_of("DeviceMesh:size", self, dim)] end
  return lists.product(self.shape)
end

--- Returns the process group of this rank in a dim.
function Mesh:get_group(dim) return self.groups[dim_of("DeviceMesh:get_group", self, dim)] end

--- Returns the rank of this process in a dim, from 0.
function Mesh:get_local_rank(dim) return self.place[dim_of("DeviceMesh:get_local_rank", self, dim)] end

--- Returns a list of the positions of this process in all dims, from 0.
function Mesh:get_coordinate() return lists.slice(self.place) end

--- Returns the rank of this process in the world.
function Mesh:get_rank() return self.rank end

-- Returns the name of dim d.
local function name_of(mesh, d) return mesh.mesh_dim_names and mesh.mesh_dim_names[d] or "dim " .. d end

--- Returns a rank of the world with its position, as errors name it: "rank 3 = replicate 0, shard 3".
function Mesh:describe_rank(rank)
  local whole, parts, rest = self.whole, {}, rank or self.rank
  for d = whole.ndim, 1, -1 do
    table.insert(parts, 1, ("%s %d"):format(name_of(whole, d), rest % whole.shape[d]))
    rest = math.floor(rest / whole.shape[d])
  end
  return ("rank %d = %s"):format(rank or self.rank, table.concat(parts, ", "))
end

--- Calls f(...), a collective of one of the mesh's groups. An error says the position of this rank, and that of the
--- ranks that it names.
function Mesh:call(f, ...)
  local results = options.pack(pcall(f, ...))
  if results[1] then return unpack(results, 2, results.n) end
  local cause, text = groups.cause(), tostring(results[2])
  if text:find(self:describe_rank(), 1, true) then error(text, 0) end
  local ranks, named = {self:describe_rank()}, ("rank %d "):format(cause and cause.rank or self.rank) .. text
  for number in named:match("^[^;]*"):gmatch "rank (%d+)" do -- a mismatch names two; waiting ranks follow
    local rank = tonumber(number)
    local text_of = rank < lists.product(self.whole.shape) and self:describe_rank(rank)
    if text_of and #ranks < 4 and not lists.index_of(ranks, text_of) then ranks[#ranks + 1] = text_of end
  end
  error(("%s (%s)"):format(text, table.concat(ranks, "; ")), 0)
end

function Mesh:__tostring()
  local dims = {}
  for d, n in ipairs(self.shape) do dims[d] = ("%s = %d"):format(name_of(self, d), n) end
  return ("DeviceMesh(%s, {%s}, %s)"):format(self.device_type, table.concat(dims, ", "), self:describe_rank())
end

-- Returns the mesh of some dims of one, which shares their groups.
local function part_of(mesh, dims)
  return setmetatable({
    device_type = mesh.device_type, ndim = #dims, shape = lists.pick(mesh.shape, dims), rank = mesh.rank,
    groups = lists.pick(mesh.groups, dims), place = lists.pick(mesh.place, dims), whole = mesh.whole,
    mesh_dim_names = mesh.mesh_dim_names and lists.pick(mesh.mesh_dim_names, dims),
  }, Mesh)
end

-- mesh["shard"], mesh[2] and mesh[{"replicate", "shard"}] are the meshes of these dims.
function Mesh.__index(mesh, key)
  if Mesh[key] ~= nil then return Mesh[key] end
  if key == "mesh_dim_names" then return nil end
  local dims = options.is_plain(key) and key or {key}
  return part_of(mesh, lists.map(dims, function(dim) return dim_of("DeviceMesh", mesh, dim) end))
end

local function check(who, shape, names, size)
  local product = lists.product(shape)
  if #shape == 0 or product ~= size then
    fail("%s: the product of mesh_shape {%s} must be %d, the number of ranks, got %d", who, table.concat(shape, ", "),
      size, product)
  end
  if names and #names ~= #shape then options.wrong_length(who, "names", #shape, "dim", #names) end
  for i, name in ipairs(names or {}) do
    if lists.index_of(names, name) ~= i then fail("%s: names has '%s' twice", who, name) end
    if Mesh[name] or name == "shape" or name == "groups" or name == "rank" then
      fail("%s: a dim cannot be named '%s', which is a field of meshes; choose another name", who, name)
    end
  end
end

-- Makes the groups of a dim, which all ranks make in the same order. Returns this rank's.
local function make_groups(default, shape, d)
  if shape[d] == default.size then return default end
  local inner, own = 1, nil
  for k = d + 1, #shape do inner = inner * shape[k] end
  for first = 0, default.size - 1 do
    if math.floor(first / inner) % shape[d] == 0 then
      local ranks = {}
      for i = 0, shape[d] - 1 do ranks[i + 1] = first + i * inner end
      local group = groups.new_group {ranks = ranks}
      if group ~= groups.NON_MEMBER then own = group end
    end
  end
  return own
end

--- dist.init_device_mesh(…): Arranges all ranks in a grid, with a process group for each dim. The last dim's ranks are
--- neighbors.
local init = signature.of([[init_device_mesh(device_type: "cpu" | "cuda", mesh_shape: count[],
  {*, names: string[]})]], function(device_type, shape, opts)
  local who, default = "init_device_mesh", groups.need "init_device_mesh"
  local names = opts.names
  local lines = {"device type " .. device_type, "shape {" .. table.concat(shape, ", ") .. "}",
    "names {" .. table.concat(names or {}, ", ") .. "}"}
  if default.size > 1 then
    load_module "luminary.distributed.same_on_all_ranks"(default, who, "mesh differs",
      table.concat(lines, "\n") .. "\n", "line")
    load_module("luminary.distributed").barrier() -- raises other ranks' errors
  end
  check(who, shape, names, default.size)
  local mesh = {
    device_type = device_type, ndim = #shape, shape = lists.slice(shape), groups = {}, place = {}, rank = default.rank,
    mesh_dim_names = names and lists.slice(names),
  }
  local rest = default.rank
  for d = #shape, 1, -1 do
    mesh.place[d], rest = rest % shape[d], math.floor(rest / shape[d])
  end
  for d = 1, #shape do mesh.groups[d] = make_groups(default, shape, d) end
  mesh.whole = mesh
  return setmetatable(mesh, Mesh)
end)

return {init_device_mesh = init, is_mesh = function(v) return getmetatable(v) == Mesh end}
