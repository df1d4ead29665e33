--- Handles the files of scripts that read their command lines by script_options.lua: on errors, these functions end the
--- script with a line about the option.
local lm = require "luminary"
local check_path = require("luminary.checkpoint.files").check_path
local rank_and_size = require "luminary.base.rank_and_size"
local common = require "luminary.base.options"
local sorted_keys, without_position = common.sorted_keys, common.without_position

return function(options, given, refuse, finish)
  local files = {}

  --- Returns the result of a Lua file in the script's folder.
  function files.beside(name)
    local path = (arg[0]:match "^.*/" or "") .. name
    local chunk, problem = loadfile(path)
    if not chunk and lm.core.file_kind(path) then finish("%s", problem) end
    return (chunk or finish("%s has to lie beside it: it is a part of this program, in the same folder of Luminary's "
      .. "sources", name))()
  end

  --- Returns models.lua in the script's folder, which has the network of --model.
  function files.models()
    local models = files.beside "models.lua"
    local names = sorted_keys(models, function(_, model) return type(model) == "function" end)
    if type(models[options.model]) ~= "function" then
      refuse("--model: '%s' is none of %s", options.model, table.concat(names, ", "))
    end
    return models
  end

  --- Returns f's results; reports its error as one of the option.
  function files.attempt(option, f, ...)
    local results = {pcall(f, ...)}
    if not results[1] then refuse("--%s: %s", option, (tostring(results[2]):gsub("^[^\n:]*:%d+: ", ""))) end
    return unpack(results, 2)
  end

  --- Makes sure that a file can be written, before a training and not after it. Makes a missing folder.
  function files.try(option, path)
    local kind = lm.core.file_kind(path)
    if kind and kind ~= "a regular file" then refuse("--%s: %s is %s", option, path, kind) end
    lm.paths.mkdir(path:match "^.*/" or ".")
    local ok, problem = pcall(lm.paths.write, path .. ".try", "")
    if not ok then refuse("--%s: %s", option, (without_position(problem):gsub("%.try': ", "': ", 1))) end
    os.remove(path .. ".try")
  end

  --- Returns a function that saves parts by lm.checkpoint.save, after checking that it can; without a path, one that
  --- does nothing.
  function files.saver(option, path)
    if not path then return function() end end
    files.attempt(option, check_path, "checkpoint", path)
    if rank_and_size() == 0 then files.try(option, path) end
    return function(parts) lm.checkpoint.save(path, parts) end
  end

  --- Returns an lm.watch.JSONLogger; without a path, a logger that writes nothing.
  function files.log(option, path, append)
    if not path then return lm.watch.Logger() end
    return files.attempt(option, lm.watch.JSONLogger, path, {append = append and true or false, wall_time = false})
  end

  --- Returns the values of the named options, for the part `run` of a checkpoint; false entries are omitted.
  function files.run_of(names)
    local run = {}
    for _, name in ipairs(names) do
      if name then run[name] = options[name] end
    end
    return run
  end

  --- Reads the checkpoint of --resume, or of --auto-resume if that file exists: one with the parts `run`, options by
  --- name, and `position`. Its options become the script's, and the command line may only repeat them, except where
  --- is_free(name, run). Returns the saved table, whose tensors are read when they are used, and its path; nil if there
  --- is nothing to resume.
  function files.resume(path, auto_path, is_free)
    path = auto_path and lm.paths.filep(auto_path) and auto_path or path
    if not path then return nil end
    local saved = files.attempt("resume", lm.load, path, {mmap = true})
    if type(saved) ~= "table" or type(saved.run) ~= "table" or type(saved.position) ~= "table" then
      refuse("--resume: %s is no checkpoint of this script", path)
    end
    for name, value in pairs(saved.run) do
      local own = options[name]
      if not given[name] then
        options[name] = value
      elseif own ~= value and not (is_free and is_free(name, saved.run)) then
        refuse("--%s %s does not go with %s, which has %s", name, tostring(own), path, tostring(value))
      end
    end
    return saved, path
  end

  return files
end
