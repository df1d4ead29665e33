--- Arranges the ranks of a job in a grid with a process group for each dim.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local groups = require "luminary.distributed.groups"
local ops, fail = core.ops, options.fail

-- Fields: device_type, ndim, shape, rank (in the world), mesh_dim_names; groups, place (this rank's position) and `of`
-- (a list of dims of the whole mesh) by dim; whole, the mesh of all ranks; its flat, the results of flatten by name.
local Mesh = {}
local FIELDS = lists.set "device_type ndim shape rank mesh_dim_names groups place of whole flat"

-- Returns the coordinates of a rank in a grid, from 0.
local function place_of(shape, rank)
  local place = {}
  for d = #shape, 1, -1 do
    place[d], rank = rank % shape[d], math.floor(rank / shape[d])
  end
  return place
end

-- Makes the groups of the ranks that differ in some dims alone, which all ranks make in the same order. Returns this
-- rank's. Several dims have a group of their own if one of them has all ranks, so that their collectives do not queue.
local function group_of(shape, dims)
  local default, lists_of, order, own = groups.need "DeviceMesh", {}, {}, nil
  local sizes = lists.pick(shape, dims)
  if lists.product(sizes) == default.size and (#dims == 1 or not lists.index_of(sizes, default.size)) then
    return default
  end
  for rank = 0, default.size - 1 do
    local others = place_of(shape, rank)
    for _, d in ipairs(dims) do others[d] = 0 end
    local key = table.concat(others, " ")
    if not lists_of[key] then
      lists_of[key], order[#order + 1] = {}, key
    end
    table.insert(lists_of[key], rank)
  end
  for _, key in ipairs(order) do
    local group = groups.new_group {ranks = lists_of[key]}
    if group ~= groups.NON_MEMBER then own = group end
  end
  return own
end

-- Returns group_of's result. On GPUs its ranks are connected at once, as long as there is memory for it. Without that
-- each pair of ranks would have a connection of its own, and messages of one would wait for those of others.
local function make_group(device_type, shape, dims)
  local group = group_of(shape, dims)
  local t = ops.zeros({1}, {device = device_type}) -- fails without a GPU
  if device_type ~= "cpu" and group.size > 1 then
    load_module("luminary.distributed").all_reduce(t, {group = group})
  end
  return group
end

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
  local whole, parts = self.whole, {}
  local size = lists.product(whole.shape)
  if rank ~= nil and not (options.is("natural", rank) and rank < size) then
    options.must_be("DeviceMesh:describe_rank", "rank", ("from 0 to %d"):format(size - 1), rank)
  end
  for d, i in ipairs(place_of(whole.shape, rank or self.rank)) do parts[d] = ("%s %d"):format(name_of(whole, d), i) end
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
  for number in named:gmatch "rank (%d+)" do
    local rank = tonumber(number)
    local text_of = rank < lists.product(self.whole.shape) and self:describe_rank(rank)
    if text_of and #ranks < 4 and not lists.index_of(ranks, text_of) then ranks[#ranks + 1] = text_of end
  end
  error(("%s (%s)"):format(text, table.concat(ranks, "; ")), 0)
end

function Mesh:__tostring()
  local dims = lists.map(self.shape, function(n, d) return ("%s = %d"):format(name_of(self, d), n) end)
  return ("DeviceMesh(%s, {%s}, %s)"):format(self.device_type, table.concat(dims, ", "), self:describe_rank())
end

-- Returns the mesh of some dims of one, which shares their groups.
local function part_of(mesh, dims)
  if #dims == 0 then fail "DeviceMesh: expected at least one dim, got {}" end
  local part, used = {
    device_type = mesh.device_type, ndim = #dims, rank = mesh.rank, whole = mesh.whole, shape = {}, groups = {},
    place = {}, of = {}, mesh_dim_names = mesh.mesh_dim_names and {},
  }, {}
  for i, dim in ipairs(dims) do
    local flat = mesh.whole.flat[dim]
    local from, d = flat or mesh, flat and 1 or dim_of("DeviceMesh", mesh, dim)
    for _, field in ipairs {"shape", "groups", "place", "of"} do part[field][i] = from[field][d] end
    if part.mesh_dim_names then part.mesh_dim_names[i] = from.mesh_dim_names[d] end
    for _, each in ipairs(from.of[d]) do
      if used[each] then fail("DeviceMesh: {%s} has %s twice", table.concat(dims, ", "), name_of(mesh.whole, each)) end
      used[each] = true
    end
  end
  return setmetatable(part, Mesh)
end

-- mesh["shard"], mesh[2] and mesh[{"replicate", "shard"}] are the meshes of these dims.
function Mesh.__index(mesh, key)
  if Mesh[key] ~= nil then return Mesh[key] end
  if key == "mesh_dim_names" then return nil end
  return part_of(mesh, options.is_plain(key) and key or {key})
end

function Mesh.__newindex(_, name) fail("DeviceMesh: cannot set '%s'; meshes are constant", tostring(name)) end

-- Fails if a dim cannot have this name.
local function check_name(who, name)
  if name == "" then fail("%s: the name of a dim must not be empty", who) end
  if Mesh[name] or FIELDS[name] then
    fail("%s: a dim cannot be named '%s', which is a field of meshes; choose another name", who, name)
  end
end

-- Fails on all ranks unless they have the same lines.
local function check_alike(who, lines)
  local default = groups.need(who)
  load_module "luminary.distributed.same_on_all_ranks"(default, who, "mesh differs", lines, "line")
  load_module("luminary.distributed").barrier() -- raises other ranks' errors
end

--- Returns the mesh of one dim that joins several dims, with a group of their ranks. All ranks of the world call it.
--- The mesh is mesh[name] from then on, which a later call with the same dims returns.
Mesh.flatten = signature.of("DeviceMesh:flatten(dims: list?, name: string?)", function(self, dims, name)
  local who, whole, of = "DeviceMesh:flatten", self.whole, {}
  for _, own in ipairs(dims and self[dims].of or self.of) do lists.append(of, own) end
  table.sort(of)
  local names = lists.map(of, function(d) return name_of(whole, d) end)
  name = name or table.concat(names, "_")
  local known = whole.flat[name]
  if known and table.concat(known.of[1], ",") == table.concat(of, ",") then return known end
  check_name(who, name)
  if known or lists.index_of(whole.mesh_dim_names or {}, name) then
    fail("%s: the mesh has a dim '%s' already", who, name)
  end
  check_alike(who, {"dims {" .. table.concat(names, ", ") .. "}", "name " .. name})
  local group = make_group(whole.device_type, whole.shape, of)
  local flat = setmetatable({
    device_type = whole.device_type, ndim = 1, rank = whole.rank, whole = whole, shape = {group.size}, groups = {group},
    place = {group.rank}, of = {of}, mesh_dim_names = {name},
  }, Mesh)
  whole.flat[name] = flat
  return flat
end)

local function check(who, shape, names, size)
  local product = lists.product(shape)
  if #shape == 0 or product ~= size then
    fail("%s: the product of mesh_shape {%s} must be %d, the number of ranks, got %d", who, table.concat(shape, ", "),
      size, product)
  end
  if names and #names ~= #shape then options.wrong_length(who, "names", #shape, "dim", #names) end
  for i, name in ipairs(names or {}) do
    if lists.index_of(names, name) ~= i then fail("%s: names has '%s' twice", who, name) end
    check_name(who, name)
  end
end

--- dist.init_device_mesh(…): Arranges all ranks in a grid, with a process group for each dim. The last dim's ranks are
--- neighbors.
local init = signature.of([[init_device_mesh(device_type: "cpu" | "cuda", mesh_shape: count[],
  {*, names: string[]})]], function(device_type, shape, opts)
  local who, default = "init_device_mesh", groups.need "init_device_mesh"
  local names = opts.names
  local lines = {"device type " .. device_type, "shape {" .. table.concat(shape, ", ") .. "}",
    "names {" .. table.concat(names or {}, ", ") .. "}"}
  check_alike(who, lines)
  check(who, shape, names, default.size)
  local mesh = {
    device_type = device_type, ndim = #shape, shape = lists.slice(shape), groups = {}, rank = default.rank,
    mesh_dim_names = names and lists.slice(names), flat = {}, of = {}, place = place_of(shape, default.rank),
  }
  for d = 1, #shape do mesh.groups[d], mesh.of[d] = make_group(device_type, shape, {d}), {d} end
  mesh.whole = mesh
  return setmetatable(mesh, Mesh)
end)

-- Fails for `who` unless v is a mesh; most: the largest number of its dims (1).
local function check_mesh(who, v, most)
  if getmetatable(v) == Mesh and v.ndim <= (most or 1) then return end
  options.must_be(who, "mesh", most and ("a result of dist.init_device_mesh with 1 to %d dims"):format(most)
    or 'a mesh of one dim, such as mesh["tensor"]', v)
end

return {init_device_mesh = init, check = check_mesh}
