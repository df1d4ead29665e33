--- Keeps the keys and values of many sequences in pages of a common memory. Sequences with equal first tokens share
--- full pages; pages that no sequence uses stay until their memory is needed.
local block_kinds = require "luminary.block_kinds"
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local ops = core.ops

-- ---- the cache of a layer, for a language model's call

local Layer = class.root "PagedCache"

-- kind: of the blocks that keys and values are rounded to; nil: they are floats of like.dtype.
function Layer:init(step, slots, heads, head_dim, like, kind)
  self.step, self.kind = step, kind
  local row = kind and head_dim / block_kinds[kind].elements * block_kinds[kind].bytes or head_dim
  self.keys = core.keep(ops.zeros({slots, heads, row}, like))
  self.values = core.keep(ops.zeros({slots, heads, row}, like))
end

function Layer.update() options.fail "PagedCache: it computes attention itself" end

-- Returns [T, heads, width] of a call's [1, heads, T, width].
local function by_token(t) return t:squeeze(1):transpose(1, 2) end

-- Returns keys or values of a call's tokens as the cache stores them.
local function stored(self, t)
  if self.kind then return ops.quantize_blocks(by_token(t), self.kind) end
  return by_token(t):to(self.keys.dtype)
end

--- Stores the keys and values of a call's tokens, [1, heads, T, head_dim], and returns the attention of their queries.
function Layer:attend(q, k, v, how)
  local step, keys, values = self.step, self.keys, self.values
  keys:index_copy_(1, step.slots, stored(self, k))
  values:index_copy_(1, step.slots, stored(self, v))
  local y = ops.paged_attention(by_token(q), keys, values, step.pages, step.sequences, step.positions, step.page_size,
    {scale = how.scale, window = how.window, cap = how.cap, kind = self.kind})
  return y:transpose(1, 2):unsqueeze(1)
end

-- ---- the pages

local Pages = class.root "Pages"

--- Pages(count, size): Makes `count` pages of `size` positions. pages.step says where each token of a call is.
function Pages:init(count, size)
  self.step, self.size, self.count = {page_size = size}, size, count
  self.free, self.users = {}, {} -- users: number of sequences of each page
  self.unused, self.first = {}, 1 -- pages without users that keep tokens, the longest unused at `first`
  self.place = {} -- indices in unused
  self.page_of, self.key_of = {}, {} -- pages by keys, which their tokens and the page before make
  self.name_of, self.names = {}, 0 -- numbers of pages in keys
  for page = count, 1, -1 do self.free[#self.free + 1] = page end
end

--- Returns the memory of all pages for the calls of a language model: floats of dtype, the net's by default, or if kind
--- is not nil, blocks.
function Pages:cache_of(net, dtype, kind)
  local like, cache, layers, heads, head_dim = net:cache_options(), {}, net:cache_sizes()
  like.dtype = kind and "uint8" or dtype or like.dtype
  for i = 1, layers do cache[i] = Layer(self.step, self.count * self.size, heads, head_dim, like, kind) end
  return cache
end

-- Returns a page, or nil if sequences use all of them.
local function new_page(self)
  local page = table.remove(self.free)
  while not page and self.first <= #self.unused do
    page, self.unused[self.first], self.first = self.unused[self.first], false, self.first + 1
  end
  if not page then return nil end
  if self.key_of[page] then self.page_of[self.key_of[page]] = nil end
  self.key_of[page], self.name_of[page], self.place[page], self.users[page] = nil, nil, nil, 1
  return page
end

-- Returns what finds the page with the tokens of a list from `first` on, after the page `before` or nil. owner: a text
-- that only the sequences have which may use the page; nil if all may.
local function key_of(self, before, tokens, first, owner)
  local own = table.concat(tokens, ",", first, first + self.size - 1)
  return (owner or "") .. (before and self.name_of[before] or "") .. ":" .. own
end

--- Adds the pages that hold the first of tokens already to list, which is empty; never that of the last token. Returns
--- their number of tokens. owner: finds pages with that owner, too.
function Pages:find(list, tokens, owner)
  while (#list + 1) * self.size < #tokens do
    local before, first = list[#list], #list * self.size + 1
    local page = self.page_of[key_of(self, before, tokens, first, owner)]
      or self.page_of[key_of(self, before, tokens, first)]
    if not page then break end
    if self.place[page] then self.unused[self.place[page]], self.place[page] = false, nil end
    self.users[page], list[#list + 1] = self.users[page] + 1, page
  end
  return #list * self.size
end

--- Adds pages to list until it has room for n tokens; returns false if there are not enough.
function Pages:grow(list, n)
  while #list * self.size < n do
    local page = new_page(self)
    if not page then return false end
    list[#list + 1] = page
  end
  return true
end

--- Returns the rows of the pages' memory that hold the positions from `first` to `last` of list.
function Pages:slots(list, first, last)
  local slots = {}
  for at = first - 1, last - 1 do
    slots[#slots + 1] = (list[math.floor(at / self.size) + 1] - 1) * self.size + at % self.size + 1
  end
  return slots
end

--- Notes the tokens of full pages of list, of which the first n are computed, after the first `noted` pages; returns
--- the number of pages that are noted then.
function Pages:note(list, tokens, n, noted, owner)
  while (noted + 1) * self.size <= n do
    local page, key = list[noted + 1], key_of(self, list[noted], tokens, noted * self.size + 1, owner)
    local same = self.page_of[key]
    if not same then
      self.names, self.page_of[key], self.key_of[page] = self.names + 1, page, key
      self.name_of[page] = self.names
    elseif same ~= page then
      self.name_of[page] = self.name_of[same] -- pages after it are found after either
    end
    noted = noted + 1
  end
  return noted
end

--- Frees the pages of a sequence, and empties list.
function Pages:drop(list)
  for i = #list, 1, -1 do -- the first tokens' pages, which others are likelier to have, stay longer
    local page = list[i]
    self.users[page], list[i] = self.users[page] - 1, nil
    if self.users[page] == 0 and self.key_of[page] then
      table.insert(self.unused, page)
      self.place[page] = #self.unused
    elseif self.users[page] == 0 then
      self.free[#self.free + 1], self.name_of[page] = page, nil
    end
  end
  if #self.unused > 2 * self.count then -- drops the entries of pages that were taken or found
    local kept = {}
    for i = self.first, #self.unused do
      local page = self.unused[i]
      if page then kept[#kept + 1], self.place[page] = page, #kept + 1 end
    end
    self.unused, self.first = kept, 1
  end
end

return Pages
