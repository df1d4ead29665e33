--- Saves conversations of serve.Engine to files, and restores them: tokens, keys and values, options, random numbers.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"

local ops = core.ops
local sessions = {}

-- Returns a few numbers of each weight of a scheduler's net, float64 [K], by which files of another model are refused.
local function model_of(scheduler)
  local dict, list = scheduler.net:state_dict(), {}
  for _, name in ipairs(options.sorted_keys(dict)) do
    local t = dict[name]
    while t.ndim > 1 and t:numel() > 0 do t = t[1] end
    if t.ndim == 1 then list[#list + 1] = t:narrow(1, 1, math.min(t:numel(), 8)):to("cpu"):double() end
  end
  return ops.cat(list, 1)
end

-- Returns the rows of a scheduler's cache that hold the positions from `first` to `last` of a list of pages.
local function rows_of(scheduler, list, first, last)
  local rows = scheduler.pages:slots(list, first, last)
  return core.tensor(rows, {dtype = "int64", device = scheduler.cache[1].keys.device})
end

--- Writes a conversation of a scheduler to a file. r: {ids, o, count, owner, pages, computed}, as Scheduler:add returns
--- it; or with pages = nil, one that has ended, of whose pages those are saved that are still there. settings: its
--- options, a plain table.
function sessions.save(scheduler, path, r, settings, random)
  local pages, found, computed = scheduler.pages, r.pages or {}, r.computed
  if not r.pages then computed = pages:find(found, r.ids, r.owner) end
  local ok, problem = pcall(core.no_grad, function()
    local keys, values, rows = {}, {}, rows_of(scheduler, found, 1, computed)
    for i, each in ipairs(scheduler.cache) do
      keys[i], values[i] = each.keys:index_select(1, rows), each.values:index_select(1, rows)
    end
    load_module("luminary.save_load").save(path, {
      luminary_conversation = 1, model = model_of(scheduler), ids = core.tensor(r.ids, {dtype = "int64"}),
      count = r.count, max_new_tokens = r.o.max_new_tokens, options = settings, random = random, keys = keys,
      values = values,
    })
  end)
  if not r.pages then pages:drop(found) end
  if not ok then error(problem, 0) end
end

-- Returns true if list has a tensor of the cache's dtype, [n, heads, width], for each layer.
local function fits(cache, list, name, n)
  if not options.is_plain(list) or #list ~= #cache then return false end
  for i, each in ipairs(cache) do
    local t, like = list[i], each[name]
    if not core.is_tensor(t) or t.dtype ~= like.dtype or t.ndim ~= 3 or t.shape[1] ~= n
      or t.shape[2] ~= like.shape[2] or t.shape[3] ~= like.shape[3] then
      return false
    end
  end
  return true
end

local function is_natural(v, most) return type(v) == "number" and v >= 0 and v <= most and v % 1 == 0 end

--- Returns what a file has of a conversation: {ids = list, count, max_new_tokens, options, random, keys, values,
--- computed}. Fails unless it is one of the scheduler's net, in the form of its cache.
function sessions.load(who, scheduler, path)
  local v = load_module("luminary.save_load").load(path)
  local function need(condition, why, ...)
    if not condition then options.fail("%s: '%s': " .. why, who, options.shown_path(path), ...) end
  end
  need(options.is_plain(v) and v.luminary_conversation == 1, "no conversation that engine:save wrote")
  local model, ids = v.model, v.ids
  need(core.is_tensor(model) and model.dtype == "float64" and model.ndim == 1, "malformed model")
  local own = core.no_grad(model_of, scheduler)
  need(model:numel() == own:numel() and model:eq(own):all():item(), "the conversation is of another model")
  need(core.is_tensor(ids) and ids.dtype == "int64" and ids.ndim == 1 and ids:numel() > 0, "malformed ids")
  local n = ids:numel()
  need(ids:min():item() >= 1 and ids:max():item() <= scheduler.net:embedding().shape[1], "ids are out of range")
  need(is_natural(v.count, n - 1) and is_natural(v.max_new_tokens, 2 ^ 31), "malformed counts")
  need(options.is_plain(v.options), "malformed options")
  need(v.random == nil or core.is_tensor(v.random) and v.random.dtype == "uint8", "malformed random state")
  local first = options.is_plain(v.keys) and v.keys[1]
  local computed = core.is_tensor(first) and first.ndim == 3 and first.shape[1] or 0
  need(computed < n and fits(scheduler.cache, v.keys, "keys", computed)
    and fits(scheduler.cache, v.values, "values", computed),
    "its keys and values do not fit the engine's dtype or cache, %s", scheduler.cache[1].kind
      or scheduler.cache[1].keys.dtype)
  v.ids, v.computed = ids:tolist(), computed
  return v
end

--- Writes the keys and values of a loaded conversation after position `first` to its pages.
function sessions.put(scheduler, v, list, first)
  local rows, n = rows_of(scheduler, list, first + 1, v.computed), v.computed - first
  for i, each in ipairs(scheduler.cache) do
    for _, name in ipairs {"keys", "values"} do
      each[name]:index_copy_(1, rows, v[name][i]:narrow(1, first + 1, n):to(rows.device))
    end
  end
end

return sessions
