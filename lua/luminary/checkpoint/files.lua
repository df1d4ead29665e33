--- Reads and writes the files of lm.checkpoint; manager.lua chooses the names of those in its folder.
---
--- A file is one of lm.save with checksums, whose value is the table of parts with states instead of objects. State
--- that differs by rank (random states, loaders, metrics) is under `ranks`, a list with a table for each rank, by path.
--- The metadata "luminary_checkpoint" is JSON: {version, world_size, shards = names of files in the same folder, one
--- for each rank, each a table of states by path}. A shard's metadata has its name, too, so that a shard of another
--- save is noticed. The file appears after all of its shards and names them, so that a save is complete or absent.
local core = require "luminary.core"
local class = require "luminary.base.class"
local interpreted = require "luminary.base.interpreted"
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local rank_and_size = require "luminary.base.rank_and_size"
local printable_name = require "luminary.base.printable_name"
local file_format = require "luminary.file_formats.checkpoint"
local formats = require "luminary.file_formats"
local safetensors = require "luminary.file_formats.safetensors"
local Source = require "luminary.file_formats.source"
local paths = require "luminary.paths"
local ranks = require "luminary.checkpoint.ranks"
local fail = options.fail

local files = {}
local ABOUT, CHECKSUMS, RANDOM, RANKS = "luminary_checkpoint", "luminary_crc32c", "rng", "ranks"
local SHARD = "luminary_shard" -- the metadata key of the name under which a shard was saved

--- The version that is written, and the latest that can be read.
files.VERSION = 1

-- Calls each(name, device) for each device.
local function each_device(each)
  each("cpu", "cpu")
  local count = core.device_count "cuda"
  if count == 0 then return end
  local current = tostring(core.device "cuda")
  each("cuda", current)
  for i = 0, count - 1 do
    local device = "cuda:" .. i
    if device ~= current and core.memory_reserved(device) > 0 then each(device, device) end
  end
end

-- Returns the states of the default generators of all devices that this process uses, by name: "cpu", "cuda" for the
-- current CUDA device, "cuda:3" for others.
local function get_random_states()
  local states = {}
  each_device(function(name, device) states[name] = core.get_rng_state(device) end)
  return states
end

-- Sets the states of a table by device; ignores devices that this process does not use.
local function set_random_states(states)
  if not options.is_plain(states) or states.cpu == nil then
    options.must_be("set_rng_state", "states", "a table by device, with 'cpu'", states)
  end
  each_device(function(name, device)
    if states[name] ~= nil then core.set_rng_state(states[name], device) end
  end)
end

local function has_state(v) return core.is_generator(v) or class.has(v, "state_dict", "load_state_dict") end

-- Calls each(object, path, keys) for the objects in a tree of plain tables; returns a copy with its results instead of
-- the objects. path, the keys with dots between, identifies an object's states by rank and shards. to_load: tensors are
-- objects too, and parts that can neither be updated nor compared with a file are an error.
local function replace_objects(who, tree, each, to_load)
  local copies, taken, keys, placement = {}, {}, {}, package.loaded["luminary.nn.parallel.placement"]
  local function walk(value)
    if placement and not to_load and core.is_tensor(value) and placement.is_part(value) then
      fail("%s: %s is one rank's part of a sharded tensor; pass the module or optimizer itself, not its state_dict",
        who, file_format.shown_path(keys, "parts"))
    end
    if has_state(value) or to_load and core.is_tensor(value) then
      local path = table.concat(lists.map(keys, tostring), ".")
      if taken[path] then fail("%s: two parts are named '%s'; rename one", who, printable_name(path, 200)) end
      taken[path] = true
      return each(value, path, {unpack(keys)})
    end
    if core.is_tensor(value) or type(value) ~= "table" or not options.is_plain(value) then
      if to_load and not ("nil number string boolean cdata"):find(type(value)) then
        fail("%s: %s is %s, which cannot be updated: it has no load_state_dict; leave it out", who,
          file_format.shown_path(keys, "parts"), options.describe(value))
      end
      return value
    end
    if copies[value] == nil then
      local copy, n = {}, #keys + 1
      copies[value] = copy
      for _, key in ipairs(file_format.keys_of(who, value, keys, "parts")) do
        keys[n] = key
        copy[key] = walk(value[key])
        keys[n] = nil
      end
    end
    return copies[value]
  end
  walk = interpreted(walk)
  return walk(tree)
end

-- ---- saving

--- Fails for parts that no checkpoint can hold.
function files.check_parts(who, parts)
  if type(parts) ~= "table" or not options.is_plain(parts) or core.is_tensor(parts) then
    options.must_be(who, "parts", "a table of objects and plain values, such as {model = net, optimizer = opt}", parts)
  end
  if parts.ranks ~= nil then fail("%s: a part cannot be named 'ranks'; choose another name", who) end
  if parts.rng ~= nil and type(parts.rng) ~= "boolean" then
    options.must_be(who, "rng", "true, for all generators, or absent", parts.rng)
  end
end

--- Returns the names of the parameters of each optimizer in parts, lists by path, as far as all ranks know them.
function files.orders_of(who, parts, to_load)
  local orders, placement = {}, package.loaded["luminary.nn.parallel.placement"]
  replace_objects(who, parts, function(object, path)
    orders[path] = placement and class.has(object, "all_parameters") and placement.names_of(object) or nil
  end, to_load)
  return orders
end

--- Fails if ranks list an optimizer's parameters in different orders: its states are saved by number. orders: of all.
function files.check_orders(who, orders)
  for r, own in ipairs(orders) do
    for path, names in lists.sorted_pairs(own) do
      for i, name in ipairs(names) do
        local first = orders[1][path] or {}
        local at = first[i] ~= name and lists.index_of(first, name)
        if at then
          fail("%s: ranks list the parameters of '%s' in different orders: %s is number %d on rank 0, %d on rank %d; "
            .. "pass the optimizer the same list on all ranks", who, path, name, at, i, r - 1)
        end
      end
    end
  end
end

--- Returns the states of parts on this rank: {tree = states shared by all ranks, own = states of this rank alone, by
--- path, shards = sharded states, by path, or nil}.
function files.states_of(who, parts, rank)
  local own, shards, is_sharded = {}, {}, false
  local function own_state(path, keys, state)
    file_format.describe(who, state, path, keys, 3) -- fails for values that cannot be saved
    own[path] = state
  end
  local tree = replace_objects(who, parts, function(object, path, keys)
    if core.is_generator(object) then
      own[path] = object:get_state()
    else
      local shard = class.has(object, "shard_state_dict") and object:shard_state_dict()
      if shard then
        shards[path], is_sharded = shard, true
      elseif object.differs_by_rank then
        own_state(path, keys, object:state_dict())
      elseif rank == 0 then
        return object:state_dict()
      end
    end
  end)
  if parts[RANDOM] then own[RANDOM], tree[RANDOM] = get_random_states(), nil end
  return {tree = tree, own = own, shards = is_sharded and shards or nil}
end

local other_formats = {pt = true, pth = true, bin = true, npy = true, npz = true}

--- Returns a path; fails for a value that no system accepts as one.
function files.check_text(who, name, path)
  if type(path) ~= "string" or path:find("\0", 1, true) then options.must_be(who, name, "a string", path) end
  return path
end

--- Fails for a path that no checkpoint can have.
function files.check_path(who, path)
  files.check_text(who, "path", path)
  local ending = path:match "%.(%w+)$"
  if other_formats[ending] then
    fail("%s: path must not end in .%s, since checkpoints are safetensors files; use .safetensors, or lm.save for "
      .. "state_dicts alone", who, ending)
  end
end

--- Returns the name of a rank's shard. generation: a text that differs from other saves' of that path.
function files.shard_name(path, generation, rank)
  return ("%s.shard-%s-%d"):format(path:match "[^/]*$", generation, rank)
end

--- Returns the metadata of a shard.
function files.shard_metadata(described, name) return described:metadata {[SHARD] = name} end

--- Returns the folder of a path with its slash, or "".
function files.folder_of(path) return path:match "^.*/" or "" end

--- Writes a file, and then removes the files that it replaces. described: the states that all ranks share; own: a list
--- of each rank's own states; opts: those of safetensors.write_checked, with the names of shards.
function files.write(path, described, own, opts)
  described:add(RANKS, own)
  local about = {version = files.VERSION, world_size = #own, shards = opts.shards}
  return safetensors.write_checked(path, described.tensors, described:metadata {[ABOUT] = json_encode(about)},
    described.names, opts)
end

--- Returns true if a file may name shards with this text in their names: it does, or cannot be read.
function files.names_shards(path, text)
  if core.file_kind(path) ~= "a regular file" then return false end
  local ok, metadata = pcall(safetensors.metadata, path)
  return not ok or (metadata[ABOUT] or ""):find(text, 1, true) ~= nil
end

-- ---- loading

-- Returns the decoded metadata of a checkpoint's file, or nil if it is another file.
local function about_of(metadata)
  local text = metadata[ABOUT]
  local ok, decoded = pcall(core.json_decode, text or "null")
  return text and (ok and type(decoded) == "table" and decoded or {}) or nil
end

-- Returns the name under which shard i was saved.
local function saved_name(file, i)
  local name = file.about.shards[i]
  if type(name) ~= "string" or name:find "/" then
    options.malformed_file(file.path, "checkpoint", "the name of shard %d is not that of a file", i)
  end
  return name
end

-- Returns the path of shard i.
local function shard_path(file, i)
  local path, elsewhere = Source.beside(file.path, saved_name(file, i))
  if path then return path end
  options.malformed_file(file.path, "checkpoint", "its shard '%s' is not in its folder", elsewhere)
end

-- Fails for a shard of another save or rank that has the name of shard i.
local function check_shard(file, i, metadata)
  local name = saved_name(file, i)
  local saved_as = metadata[SHARD] or name
  if saved_as ~= name then
    saved_as = printable_name(saved_as, 200)
    options.malformed_file(shard_path(file, i), "shard of a checkpoint", "it was saved as '%s'", saved_as)
  end
end

-- Returns true if `list` is a list of n tables.
local function are_states(list, n)
  return options.is_plain(list) and #list == n and lists.every(list, options.is_plain)
end

--- Reads a file for files.apply: {path, value, about = {version, world_size, shards}, sum = the checksum of all its
--- checksums, "" without them, outlines = those of its shards, by number and object}. rank, size: nil, or reads only
--- that rank's part of the shards; others must be there. The checksums of shards that it reads are compared, so that
--- damage is noticed before anything is loaded.
function files.read(who, path, rank, size)
  local loaded = formats.load(path, {})
  local value, about = loaded.value, {version = 0, world_size = 1, shards = {}}
  if type(value) ~= "table" or core.is_tensor(value) then
    fail("%s: '%s' has %s, not a table of parts", who, options.shown_path(path), options.describe(value))
  end
  local written = about_of(loaded.metadata)
  if written then
    about = written
    if not loaded.metadata[CHECKSUMS] then
      options.malformed_file(path, "checkpoint", "it has no checksums")
    elseif not options.is("count", about.version) or not options.is("count", about.world_size)
      or type(about.shards) ~= "table" or not are_states(value.ranks, about.world_size) then
      options.malformed_file(path, "checkpoint", "its metadata '%s' is not what checkpoint.save writes", ABOUT)
    end
    if about.version > files.VERSION then
      fail("%s: '%s' has version %d of the format, this library reads up to %d; load it with the library that wrote it",
        who, options.shown_path(path), about.version, files.VERSION)
    end
  end
  local sums = loaded.metadata[CHECKSUMS]
  local file = {path = path, value = value, about = about, sum = sums and ("%08x"):format(core.crc32c(sums, 0)) or ""}
  -- A listing takes few requests; it may be older than the files.
  local listed = lists.set(about.shards[1] and paths.dir(path:match "^(.*/)[^/]*$" or ".") or {})
  file.outlines = {}
  for i = 1, #about.shards do
    if (i - 1) % (size or 1) == (rank or 0) then
      local shard = formats.load(shard_path(file, i), {})
      check_shard(file, i, shard.metadata)
      file.outlines[i] = {}
      for part, state in pairs(options.is_plain(shard.value) and shard.value or {}) do
        file.outlines[i][part] = ranks.outline(state)
      end
    elseif not listed[saved_name(file, i)] then
      check_shard(file, i, safetensors.metadata(shard_path(file, i)))
    end
  end
  return file
end

--- Reads a file on all ranks, which must read the same file, possibly from different folders. Each rank reads some
--- shards, and gets the outlines of all; of copies, it reads all of its own. Returns nil and the errors by rank, from
--- 1, if any rank fails.
function files.read_on_all(who, path)
  local file
  local sides, problems = ranks.try(function()
    file = files.read(who, path, rank_and_size())
    return {path = path, sum = file.sum, outlines = file.outlines, id = select(3, core.file_kind(path))}
  end)
  if next(problems) then return nil, problems end
  for r, side in ipairs(sides) do
    if side.sum ~= sides[1].sum then
      fail("%s: ranks 0 and %d read different files, rank 0 '%s' with checksum %s, rank %d '%s' with checksum %s; load "
        .. "from a folder that all ranks share, or from equal copies", who, r - 1, options.shown_path(sides[1].path),
        sides[1].sum, r - 1, options.shown_path(side.path), side.sum)
    end
    for i, outline in pairs(side.outlines) do file.outlines[i] = outline end
  end
  if file.outlines[1] and lists.find(sides, function(side) return side.id ~= sides[1].id end) then
    problems = select(2, ranks.try(function() file = files.read(who, path) end))
    if next(problems) then return nil, problems end
  end
  return file
end

local function value_at(tree, keys)
  for _, key in ipairs(keys) do
    if type(tree) ~= "table" or core.is_tensor(tree) then return nil end
    tree = tree[key]
  end
  return tree
end

-- Returns an iterator over an object's states in all shards. Its argument is nil, or the object's parameters as
-- placement.has_common takes them: then a shard that has none of their elements is not read, and its tensors have no
-- values. Each other shard is mapped, and released before the next.
local function each_shard(file, part)
  local i, placement = 0, load_module "luminary.nn.parallel.placement"
  local function check(state)
    if options.is_plain(state) then return state end
    options.malformed_file(shard_path(file, i), "shard of a checkpoint", "it has no '%s'", part)
  end
  return function(own)
    i = i + 1
    if file.about.shards[i] == nil then return nil end
    local outline = file.outlines[i][part]
    outline = check(outline and ranks.from_outline(outline))
    if own and not placement.has_common(own, outline) then return outline end
    local loaded = formats.load(shard_path(file, i), {mmap = true})
    check_shard(file, i, loaded.metadata)
    return check(options.is_plain(loaded.value) and loaded.value[part])
  end
end

--- Returns the paths of the shards of a file with this metadata, a list.
function files.shards_of(path, metadata)
  local about = about_of(metadata) or {}
  local file = {path = path, about = {shards = type(about.shards) == "table" and about.shards or {}}}
  return lists.map(file.about.shards, function(_, i) return shard_path(file, i) end)
end

-- Returns a table by the paths of the objects whose states are in the shards of a file; each shard has a part of each.
local function sharded_parts(file) return file.outlines[1] or {} end

--- Adds the complete states of the objects that ranks saved in shards to the value of a file of files.read.
function files.join_shards(file)
  local placement = load_module "luminary.nn.parallel.placement"
  for _, path in ipairs(options.sorted_keys(sharded_parts(file))) do
    local at, name = file.value, tostring(path)
    while options.is_plain(at[name:match "^[^.]*"]) do -- tables of parts are in the file, without their objects
      at, name = at[name:match "^[^.]*"], name:match "%.(.*)$"
    end
    at[tonumber(name) or name] = placement.joined(each_shard(file, path))
  end
end

local function load_into(object, state, shards)
  if core.is_generator(object) then
    object:set_state(state)
  elseif core.is_tensor(object) then
    core.no_grad(function() object:copy_(state) end)
  elseif shards then
    object:load_shards(shards)
  else
    object:load_state_dict(state)
  end
end

-- Returns paths with modules first: an optimizer's state is copied to the devices of its parameters.
local function in_order(objects, states)
  local all = options.sorted_keys(states)
  local function is_module(path) return class.has(objects[path], "parameters") end
  local function is_other(path) return not is_module(path) end
  return lists.append(lists.filter(all, is_module), lists.filter(all, is_other))
end

local function first_level(file)
  local names, value = {}, file.value
  for _, part in ipairs {value, sharded_parts(file), type(value.ranks) == "table" and value.ranks[1] or nil} do
    for name in pairs(part) do names[#names + 1] = (part ~= value or name ~= "ranks") and tostring(name) or nil end
  end
  table.sort(names)
  return #names > 0 and printable_name(table.concat(names, ", "), 400) or "nothing"
end

-- Returns states of objects by path, each {state} or {shards = an iterator}; fails for absent states and other kinds.
local function find_states(who, file, objects, positions, own, lacks)
  local size = select(2, rank_and_size())
  local states, shown = {}, options.shown_path(file.path)
  for part, object in lists.sorted_pairs(objects) do
    local state = own[part]
    if state == nil then state = value_at(file.value, positions[part]) end
    local is_tensor = core.is_tensor(object)
    local takes_tensor = is_tensor or core.is_generator(object)
    if state ~= nil then
      if takes_tensor ~= core.is_tensor(state) or not (takes_tensor or options.is_plain(state)) then
        fail("%s: '%s': %s is %s, not the state of %s", who, shown, part, options.describe(state),
          options.describe(object))
      elseif is_tensor and object.shape ~= state.shape then
        fail("%s: '%s': expected %s to have shape [%s], got [%s]", who, shown, part, table.concat(object.shape, ", "),
          table.concat(state.shape, ", "))
      end
      if file.about.world_size ~= size and class.has(object, "check_rank_states") then
        local of_ranks = lists.map(file.value.ranks or {}, function(each) return each[part] end)
        if of_ranks[1] then object:check_rank_states(of_ranks) end
      end
      states[part] = {state = state}
    elseif class.has(object, "load_shards") and sharded_parts(file)[part] then
      states[part] = {shards = each_shard(file, part)}
    else
      lacks(part)
    end
  end
  return states
end

-- Puts an object into the loaded table, at its keys in parts.
local function put_object(into, keys, object)
  for i = 1, #keys - 1 do
    local inner = into[keys[i]]
    if type(inner) ~= "table" or core.is_tensor(inner) then inner = {} end
    into[keys[i]] = inner
    into = inner
  end
  into[keys[#keys]] = object
end

--- Loads a file of files.read into parts. Finds everything before it changes the first object.
function files.apply(who, file, parts, strict)
  local value, about, path = file.value, file.about, options.shown_path(file.path)
  local rank, size = rank_and_size()
  local by_rank = about.version > 0 and value.ranks or {}
  local own = by_rank[rank + 1] or by_rank[1] or {}

  local function lacks(part)
    if not strict then return end
    fail("%s: '%s' has no '%s'; it has %s. Leave the part out, or pass {strict = false}", who, path,
      printable_name(part, 200), first_level(file))
  end

  local objects, positions = {}, {}
  replace_objects(who, parts, function(object, part, keys) objects[part], positions[part] = object, keys end, true)
  local states = find_states(who, file, objects, positions, own, lacks)
  if parts[RANDOM] and own[RANDOM] == nil then lacks(RANDOM) end

  local order = in_order(objects, states)
  for i, part in ipairs(order) do
    local ok, problem = pcall(load_into, objects[part], states[part].state, states[part].shards)
    if not ok then
      problem = options.without_position(problem):gsub("^load: ", ""):gsub("^load_shards: ", "") -- inner names
      fail("%s: '%s': %s: %s%s", who, path, part, problem,
        i > 1 and ("; loaded before it: " .. table.concat(order, ", ", 1, i - 1)) or "")
    end
  end
  if parts[RANDOM] and own[RANDOM] then
    if by_rank[rank + 1] then
      local ok, problem = pcall(set_random_states, own[RANDOM])
      if not ok then fail("%s: '%s': %s: %s", who, path, RANDOM, options.without_position(problem)) end
    else
      core.warn(("%s: rank %d keeps its generators: '%s' has those of %d rank%s, of %d now"):format(who, rank, path,
        about.world_size, about.world_size == 1 and "" or "s", size))
    end
  end
  if about.version > 0 then value.ranks, value[RANDOM] = nil, parts[RANDOM] end
  for part in pairs(states) do put_object(value, positions[part], objects[part]) end
  return value
end

return files
