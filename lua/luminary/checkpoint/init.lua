--- lm.checkpoint: Saves and loads everything that the next step of a training depends on, in one call.
local core = require "luminary.core"
local options = require "luminary.base.options"
local rank_and_size = require "luminary.base.rank_and_size"
local safetensors = require "luminary.file_formats.checkpoint"
local background = require "luminary.checkpoint.background"
local files = require "luminary.checkpoint.files"
local ranks = require "luminary.checkpoint.ranks"
local fail = options.fail

local checkpoint = {}

local function check_parts(who, parts)
  if type(parts) ~= "table" or not options.is_plain(parts) or core.is_tensor(parts) then
    options.must_be(who, "parts", "a table of objects and plain values, such as {model = net, optimizer = opt}", parts)
  end
  if parts.ranks ~= nil then fail("%s: a part cannot be named 'ranks'; choose another name", who) end
  if parts.rng ~= nil and type(parts.rng) ~= "boolean" then
    options.must_be(who, "rng", "true, for all generators, or absent", parts.rng)
  end
end

--- checkpoint.save(path, parts [, {async = false}]): Saves the states of a table of objects, and its plain values, to a
--- file. All ranks call it; rank 0 writes.
function checkpoint.save(path, parts, opts)
  local who = "checkpoint.save"
  opts = options.check(who, opts, {async = {"boolean", false}})
  files.check_path(who, path)
  check_parts(who, parts)
  local rank, size = rank_and_size()
  local states = ranks.attempt(who, background.finish, function() return files.states_of(parts, rank) end)

  local own, is_sharded = {}, false
  for r, each in ipairs(ranks.gather {own = states.own, is_sharded = states.shards ~= nil}) do
    own[r], is_sharded = each.own, is_sharded or each.is_sharded
  end
  local shards = {}
  if is_sharded then
    local generation = ranks.of_first(function() return ("%08x%05x"):format(os.time(), core.time() * 1e6 % 2 ^ 20) end)
    for r = 0, size - 1 do shards[r + 1] = files.shard_name(path, generation, r) end
    local own_shard = files.folder_of(path) .. shards[rank + 1]
    local ok, problem = pcall(ranks.attempt, who, function()
      safetensors.save(own_shard, states.shards or {}, {checksums = true})
    end)
    if not ok then
      os.remove(own_shard)
      error(problem, 0)
    end
  end

  local pending
  ranks.attempt(who, function()
    if rank ~= 0 then return end
    local value = states.tree
    value.ranks = own
    local about = {version = files.VERSION, world_size = size, shards = shards}
    if opts.async then
      pending = background.start(path, value, about)
    else
      files.write(path, value, about)
    end
  end)
  return opts.async and (pending or background.none()) or nil
end

--- checkpoint.load(path, parts [, {strict = true}]): Loads a checkpoint into a table of objects; parts may be nil.
--- Returns the table that was saved, with these objects instead of their states.
function checkpoint.load(path, parts, opts)
  local who = "checkpoint.load"
  opts = options.check(who, opts, {strict = {"boolean", true}})
  options.arg(who, "path", path, "string")
  if parts ~= nil then
    check_parts(who, parts)
    if parts.strict ~= nil and options.is("boolean", parts.strict) then
      fail("%s: strict is an option, after parts: checkpoint.load(path, parts, {strict = %s})", who,
        tostring(parts.strict))
    end
  end
  background.finish()
  return files.apply(who, files.read(who, path), parts or {}, opts.strict)
end

--- Returns whether this process, or another rank, has received a SIGTERM, such as before a preemption. All ranks call
--- it, and get the same answer. From the first call on, a first SIGTERM does not end the process.
function checkpoint.is_preempted()
  core.sigterm_defer()
  return ranks.any_quick(core.sigterm_came())
end

--- Waits for the save in the background, if there is one; raises its error.
function checkpoint.wait() background.finish() end

options.exact_all(checkpoint)
return options.strict("checkpoint", checkpoint, {Manager = {"checkpoint.manager"}})
