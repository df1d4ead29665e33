--- Manages the process groups of this Lua state, and their ranks.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local fail = options.fail

-- world: the core's, nil with one process; default: the group of all, nil before init; alone: one of this rank, if a
-- mesh has made it; start_cause: why init failed
local groups = {}
local open = {} -- all groups in the order of creation, kept alive until destroy_process_group closes them

local Group = {}
Group.__index = Group

function Group:__tostring()
  if not self.handle then return "ProcessGroup(destroyed)" end
  local ranks = ""
  if self ~= groups.default then
    ranks = (" of the world's {%s}"):format(table.concat(self.ranks, ", ", 1, math.min(16, self.size))
      .. (self.size > 16 and ", …" or ""))
  end
  return ("ProcessGroup(%s, rank %d of %d%s)"):format(self.backend, self.rank, self.size, ranks)
end

--- Makes a group with the fields rank, size, ranks (in the world), backend, handle (the core's). Methods group:rank()
--- and group:size() would clash with the fields.
local function new(handle, backend)
  local rank, size, ranks = core.dist_members(handle)
  local group = setmetatable({handle = handle, backend = backend, rank = rank, size = size, ranks = ranks}, Group)
  open[#open + 1] = group
  return group
end

--- dist.NON_MEMBER: Stands for a group on ranks outside of it; dist.new_group returns it there.
groups.NON_MEMBER = setmetatable({}, {__tostring = function() return "dist.NON_MEMBER" end})

--- Returns the default group; fails if there is none.
function groups.need(who)
  if not groups.default then fail("%s: no process group; call dist.init_process_group() first", who) end
  return groups.default
end

--- Returns the group that an option names; by default the default group.
function groups.resolve(who, group)
  local default = groups.need(who)
  if group == nil then return default end
  if group == groups.NON_MEMBER then
    fail("%s: rank %d, this process, is not in the group; check new_group's result against dist.NON_MEMBER first", who,
      default.rank)
  end
  if getmetatable(group) ~= Group then
    options.must_be(who, "group", "a result of dist.new_group", group)
  end
  if not group.handle then fail("%s: this process group was destroyed", who) end
  return group
end

--- Returns a backend's text in the core's form: "cuda:NCCL, cpu:gloo" becomes "cpu:gloo,cuda:nccl". An unavailable
--- backend is an error that lists the available ones.
function groups.backend(who, text) return core.dist_has((text:lower():gsub("%s", "")), who) end

--- Starts the default group. world: from core.dist_open, or nil for one process alone.
function groups.start(world, backend, size)
  if not world then
    groups.default = new(core.dist_solo(), "solo")
    return
  end
  local numbers = {}
  for i = 1, size do numbers[i] = 1 end
  groups.default = new(core.dist_group(world, backend, numbers), backend)
  groups.world, groups.start_cause = world, nil
end

--- Returns the store's record of this or another rank's failure, as core.dist_cause does, or nil.
function groups.cause() return groups.world and core.dist_cause(groups.world) or groups.start_cause end

-- Returns the number of each rank's list among lists of ranks, or 0.
local function numbers_of(rank_lists)
  local numbers = {}
  for i = 1, groups.default.size do numbers[i] = 0 end
  for i, ranks in ipairs(rank_lists) do
    for _, rank in ipairs(ranks) do numbers[rank + 1] = i end
  end
  return numbers
end

--- Returns a group of the same ranks with a communicator and a stream of its own, which the group's members make in the
--- first call; true in that call, and false later.
function groups.twin(group)
  local has_none = not group.twin
  group.twin = group.twin
    or new(core.dist_group(groups.world, group.backend, numbers_of {group.ranks}, nil, group.handle), group.backend)
  return group.twin, has_none
end

local function close(group)
  if group.twin and group.twin.handle then close(group.twin) end
  core.dist_close(group.handle)
  group.handle = nil
  if groups.alone == group then groups.alone = nil end
  for i = #open, 1, -1 do
    if open[i] == group then table.remove(open, i) end
  end
end

--- Closes one group, or with the default one all: on all ranks in the same order, since a backend may synchronize.
function groups.destroy(group)
  if group ~= groups.default then return close(group) end
  for i = #open, 1, -1 do close(open[i]) end
  if groups.world then core.dist_close(groups.world) end
  groups.world, groups.default = nil, nil
end

-- Returns a list of ranks in the world, sorted and checked.
local function check_ranks(who, ranks, size)
  local list, entries = {}, 0
  for _ in pairs(ranks) do entries = entries + 1 end
  if entries ~= #ranks then -- holes, or options among them
    fail("%s: ranks must be a list of ranks; options go in a separate table: {timeout = 60}", who)
  end
  for i, rank in ipairs(ranks) do
    list[i] = options.arg(who, ("ranks[%d]"):format(i), rank, "natural")
    if rank >= size then fail("%s: rank %d is out of range for %d ranks (ranks start at 0)", who, rank, size) end
  end
  if #list == 0 then fail("%s: ranks must not be empty", who) end
  table.sort(list)
  for i = 2, #list do
    if list[i] == list[i - 1] then fail("%s: rank %d is listed twice", who, list[i]) end
  end
  return list
end

--- Creates groups of lists of ranks, which have none in common, at once: NCCL splits a communicator once for all.
--- Collective of all ranks. Returns this rank's, or NON_MEMBER.
function groups.new_groups(rank_lists, backend, timeout)
  if not groups.world then return new(core.dist_solo(), "solo") end
  local handle = core.dist_group(groups.world, backend, numbers_of(rank_lists), timeout)
  return handle and new(handle, backend) or groups.NON_MEMBER
end

--- Creates a group of some of the ranks.
groups.new_group = signature.of("new_group({ranks: list, timeout: seconds, backend: string})", function(opts)
  local who = "new_group"
  local default = groups.need(who)
  local ranks = check_ranks(who, opts.ranks or default.ranks, default.size)
  local backend = opts.backend and groups.backend(who, opts.backend) or default.backend
  return groups.new_groups({ranks}, backend, opts.timeout)
end)

-- ---- queries

local function group_with_this_rank(who, group)
  if group == groups.NON_MEMBER then
    groups.need(who)
    return nil
  end
  return groups.resolve(who, group)
end

--- Returns the rank of this process in a group.
function groups.get_rank(group)
  group = group_with_this_rank("get_rank", group)
  return group and group.rank or -1
end

--- Returns the number of ranks of a group.
function groups.get_world_size(group)
  group = group_with_this_rank("get_world_size", group)
  return group and group.size or -1
end

--- Returns the backend of a group: "gloo", "nccl", "cpu:gloo,cuda:nccl" or "solo".
function groups.get_backend(group) return groups.resolve("get_backend", group).backend end

--- Returns the ranks in the world of all ranks of a group, in the group's order.
function groups.get_process_group_ranks(group)
  return lists.slice(groups.resolve("get_process_group_ranks", group).ranks)
end

--- Translates a rank in a group into the rank in the world.
function groups.get_global_rank(group, rank)
  group = groups.resolve("get_global_rank", group)
  rank = options.arg("get_global_rank", "the rank in the group", rank, "natural")
  if rank >= group.size then
    fail("get_global_rank: rank %d is out of range for %d ranks (ranks start at 0)", rank, group.size)
  end
  return group.ranks[rank + 1]
end

--- Translates a rank in the world into the rank in a group.
function groups.get_group_rank(group, rank)
  group = groups.resolve("get_group_rank", group)
  rank = options.arg("get_group_rank", "the rank in the world", rank, "natural")
  local i = lists.index_of(group.ranks, rank)
    or fail("get_group_rank: rank %d is not in the group {%s}", rank, table.concat(group.ranks, ", "))
  return i - 1
end

return groups
