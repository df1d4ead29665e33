--- lm.checkpoint: Saves and loads everything that the next step of a training depends on, in one call.
local core = require "luminary.core"
local options = require "luminary.base.options"
local background = require "luminary.checkpoint.background"
local files = require "luminary.checkpoint.files"
local ranks = require "luminary.checkpoint.ranks"
local save = require "luminary.checkpoint.save"

local checkpoint = {}

--- checkpoint.save(path, parts [, {async = false}]): Saves the states of a table of objects, and its plain values, to a
--- file. All ranks call it; rank 0 writes.
function checkpoint.save(path, parts, opts)
  opts = options.check("checkpoint.save", opts, "{async = false}")
  return save("checkpoint.save", path, parts, opts.async)
end

--- checkpoint.load(path, parts [, {strict = true}]): Loads a checkpoint into a table of objects, on all ranks; without
--- parts each rank may read alone. Returns the table that was saved, with these objects instead of their states.
function checkpoint.load(path, parts, opts)
  local who = "checkpoint.load"
  opts = options.check(who, opts, "{strict = true}")
  files.check_text(who, "path", path)
  if parts ~= nil then
    files.check_parts(who, parts)
    if parts.strict ~= nil and options.is("boolean", parts.strict) then
      options.fail("%s: strict is an option, after parts: checkpoint.load(path, parts, {strict = %s})", who,
        tostring(parts.strict))
    end
  end
  if parts == nil then
    background.finish_here(who)
    local file = files.read(who, path)
    files.join_shards(file)
    return files.apply(who, file, {}, opts.strict)
  end
  files.check_orders(who, ranks.gather_from(who, function()
    background.finish(who)
    return files.orders_of(who, parts, true)
  end))
  local file, problems = files.read_on_all(who, path)
  if not file then ranks.raise(who, problems) end
  return ranks.attempt(who, function() return files.apply(who, file, parts, opts.strict) end)
end

--- Returns whether this process, or another rank, has received a SIGTERM, such as before a preemption. All ranks call
--- it, and get the same answer. From the first call on, a first SIGTERM does not end the process.
function checkpoint.is_preempted()
  core.sigterm_defer()
  return ranks.any_quick(core.sigterm_came())
end

--- Waits for the save in the background, if there is one; raises its error. All ranks call it for a save with shards.
function checkpoint.wait() background.finish "checkpoint.wait" end

options.exact_all(checkpoint)
return options.strict("checkpoint", checkpoint, {Manager = {"checkpoint.manager"}})
