--- Returns the function save(who, path, parts, async), for checkpoint.save and Manager:save. Errors begin with `who`.
---
--- What can fail for a rank's own reasons is done in ranks.attempt, so that all ranks raise. Shards are written first,
--- and stay locked until rank 0 has written the file that names them.
local core = require "luminary.core"
local rank_and_size = require "luminary.base.rank_and_size"
local file_format = require "luminary.file_formats.checkpoint"
local options = require "luminary.base.options"
local paths = require "luminary.paths"
local safetensors = require "luminary.file_formats.safetensors"
local background = require "luminary.checkpoint.background"
local files = require "luminary.checkpoint.files"
local ranks = require "luminary.checkpoint.ranks"

local own_shard -- the last one of this rank, still locked

local function unlock_shard()
  if own_shard then core.background_write_close(own_shard) end
  own_shard = nil
end

-- Writes the shards of all ranks; `names` becomes the list of their names.
local function write_shards(who, path, rank, size, shards, names)
  local generation = ranks.of_first(who, function()
    return ("%08x%05x"):format(os.time(), core.time() * 1e6 % 2 ^ 20)
  end)
  for r = 0, size - 1 do names[r + 1] = files.shard_name(path, generation, r) end
  ranks.attempt(who, function()
    local described = file_format.describe(who, shards, "parts")
    local name = names[rank + 1]
    own_shard = safetensors.write_checked(files.folder_of(path) .. name, described.tensors,
      files.shard_metadata(described, name), described.names, {who = who, locked = true})
  end)
end

-- A file that names shards of other folders would be saved at each step, and never load.
local function check_shards(who, path, names)
  local folder = files.folder_of(path)
  for r, name in ipairs(names) do
    if not paths.filep(folder .. name) then
      options.fail("%s: rank %d's shard is not in rank 0's folder '%s'; save into a folder that all ranks share", who,
        r - 1, options.shown_path(folder))
    end
  end
end

return function(who, path, parts, async)
  local rank, size = rank_and_size()
  local states, described
  ranks.attempt(who, function()
    files.check_path(who, path)
    files.check_parts(who, parts)
    background.finish(who)
    unlock_shard()
    states = files.states_of(who, parts, rank)
    described = file_format.describe(who, states.tree, "parts")
  end)
  local own, is_sharded = {}, false
  for r, each in ipairs(ranks.gather {own = states.own, is_sharded = states.shards ~= nil}) do
    own[r], is_sharded = each.own, is_sharded or each.is_sharded
  end

  local names, write = {}, nil
  local ok, problem = pcall(function()
    if is_sharded then write_shards(who, path, rank, size, states.shards or {}, names) end
    ranks.attempt(who, function()
      if rank > 0 then return end
      check_shards(who, path, names)
      write = files.write(who, path, described, own, names, async)
    end)
  end)
  if not ok then
    unlock_shard()
    if names[1] then os.remove(files.folder_of(path) .. names[rank + 1]) end
    error(problem, 0)
  end
  if async then return background.pending(path, write) end
  unlock_shard()
end
