--- Returns the function save(who, path, parts, async), for checkpoint.save and Manager:save. Errors begin with `who`.
---
--- Each step that can fail on one rank alone runs in ranks.attempt, so that all ranks raise.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local rank_and_size = require "luminary.base.rank_and_size"
local file_format = require "luminary.file_formats.checkpoint"
local safetensors = require "luminary.file_formats.safetensors"
local background = require "luminary.checkpoint.background"
local files = require "luminary.checkpoint.files"
local ranks = require "luminary.checkpoint.ranks"

-- Returns the names of the shards of a save.
local function name_shards(who, path, size)
  local generation = ranks.of_first(who, function()
    return ("%08x%05x"):format(require("os").time(), core.time() * 1e6 % 2 ^ 20)
  end)
  local names = {}
  for r = 0, size - 1 do names[r + 1] = files.shard_name(path, generation, r) end
  return {names = names, suffix = (".shard-%s-main"):format(generation)}
end

return function(who, path, parts, async)
  local rank, size = rank_and_size()
  local gathered = ranks.gather_from(who, function()
    background.finish(who) -- first, since it is collective
    files.check_path(who, path)
    files.check_parts(who, parts)
    return {table.concat(lists.map(lists.sorted_keys(parts), tostring), ", "), files.orders_of(who, parts)}
  end)
  for r, each in ipairs(gathered) do
    if each[1] ~= gathered[1][1] then
      options.fail("%s: all ranks must save the same parts, but rank 0 has %s; rank %d has %s", who, gathered[1][1],
        r - 1, each[1])
    end
  end
  files.check_orders(who, lists.map(gathered, function(each) return each[2] end))
  local states, described
  local own, is_sharded = {}, false
  for r, each in ipairs(ranks.gather_from(who, function()
    states = files.states_of(who, parts, rank) -- which may be collective, of a Pipeline's optimizer
    described = file_format.describe(who, states.tree, "parts")
    return {own = states.own, is_sharded = states.shards ~= nil}
  end)) do
    own[r], is_sharded = each.own, is_sharded or each.is_sharded
  end

  local shards = is_sharded and name_shards(who, path, size) or nil
  local pending = background.Pending(path, shards)
  local ok, problem = pcall(ranks.attempt, who, function()
    local opts = {who = who, background = async, shards = {}}
    if shards then
      opts.shards, opts.whole, opts.suffix, opts.locked = shards.names, path, shards.suffix, true
      local shard = file_format.describe(who, states.shards or {}, "parts")
      local name = shards.names[rank + 1]
      pending.writes[1] = safetensors.write_checked(files.folder_of(path) .. name, shard.tensors,
        files.shard_metadata(shard, name), shard.names, opts)
    end
    if rank == 0 then table.insert(pending.writes, files.write(path, described, own, opts)) end
  end)
  if not ok then
    background.abandon(pending)
    error(problem, 0)
  end
  if async then return background.run(pending) end
  background.finish(who, pending)
end
