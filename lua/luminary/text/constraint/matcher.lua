--- Matches texts with compiled rules (rules.lua), byte by byte, and finds the tokens that may follow.
---
--- A state is the set of stacks in which the rules may be after a text; equal states are one table, so that a byte's
--- successor and the mask of tokens are computed once for each.
local ffi = require "ffi"
local core = require "luminary.core"
local new_table = require "table.new"

local matcher = {}

-- Limits: levels of rules within rules; stacks of a state; states and masks that are kept.
local DEEPEST, MOST_STACKS, MOST_STATES, MOST_MASKS = 400, 4096, 2 ^ 13, 128

local Matcher = {}
Matcher.__index = Matcher

-- Returns the stack with `position` on top of `parent`.
local function pushed(self, parent, position)
  local stack = parent.above[position]
  if not stack then
    self.count = self.count + 1
    stack = {position = position, parent = parent, depth = parent.depth + 1, above = {}, id = self.count}
    parent.above[position] = stack
  end
  return stack
end

-- Returns the stack that continues at a position, which leaves the rule at its end.
local function continued(self, parent, position)
  if not self.rules.sets[position] and not self.rules.refs[position] then return parent end
  return pushed(self, parent, position)
end

-- Adds to `out` the stacks with a set of bytes on top that `stack` begins. seen: by stack.
local function expand(self, stack, out, seen)
  if seen[stack] then return end
  seen[stack] = true
  seen.n = seen.n + 1
  if seen.n > MOST_STACKS then self.fail("it is left-recursive or ambiguous: more than %d stacks", MOST_STACKS) end
  if stack.depth == 0 then
    out.accepts = true
  elseif self.rules.sets[stack.position] then
    out[#out + 1] = stack
  elseif stack.depth < DEEPEST then
    local after = continued(self, stack.parent, stack.position + 1)
    for _, start in ipairs(self.rules.starts[self.rules.refs[stack.position]]) do
      expand(self, continued(self, after, start), out, seen)
    end
  end
end

-- Returns the state of a list of stacks.
local function state_of(self, stacks)
  local ids = {}
  for i, stack in ipairs(stacks) do ids[i] = stack.id end
  table.sort(ids)
  local key = table.concat(ids, ",") .. (stacks.accepts and "." or "")
  local state = self.states[key]
  if not state then
    if self.n_states == MOST_STATES then self.states, self.n_states = {}, 0 end
    state = new_table(256, 4) -- successors by byte in the array part
    state.stacks, state.accepts, state.ends = stacks, stacks.accepts or false, #stacks == 0
    self.states[key], self.n_states = state, self.n_states + 1
  end
  return state
end

-- Returns the state after a byte; false if no text continues with it.
local function after_byte(self, state, byte)
  local out, seen = {}, {n = 0}
  for _, stack in ipairs(state.stacks) do
    if self.rules.sets[stack.position][byte] then
      expand(self, continued(self, stack.parent, stack.position + 1), out, seen)
    end
  end
  local following = (#out > 0 or out.accepts) and state_of(self, out) or false
  state[byte] = following
  return following
end

--- Returns the state after a text; false if no text of the rules begins with it.
function Matcher:after(state, text)
  for i = 1, #text do
    local byte = text:byte(i)
    local following = state[byte]
    if following == nil then following = after_byte(self, state, byte) end
    if not following then return false end
    state = following
  end
  return state
end

--- Returns a matcher of compiled rules, with the field `start`, the state before a text. fail(format, …) raises errors.
function matcher.new(rules, fail)
  local bottom = {depth = 0, above = {}, id = 0}
  local self = setmetatable({rules = rules, fail = fail, count = 0, states = {}, n_states = 0}, Matcher)
  local out, seen = {}, {n = 0}
  for _, start in ipairs(rules.starts[rules.root]) do expand(self, continued(self, bottom, start), out, seen) end
  if #out == 0 and not out.accepts then fail "no text matches it" end
  self.start = state_of(self, out)
  self.masks, self.n_masks = {}, 0
  return self
end

-- ---- tokens

-- Returns true for printable ASCII except quotes and backslashes. Most tokens consist of such bytes.
local function is_plain(byte) return byte >= 32 and byte < 127 and byte ~= 34 and byte ~= 39 and byte ~= 92 end

-- Returns true if a state stays the same after each plain byte, as within a JSON string.
local function keeps_plain(self, state)
  for byte = 32, state.keeps == nil and 126 or 0 do
    if is_plain(byte) and self:after(state, string.char(byte)) ~= state then
      state.keeps = false
      break
    end
  end
  state.keeps = state.keeps ~= false
  return state.keeps
end

--- Returns the tree of tokens' bytes, in preorder: by node the byte, its depth, the node after those below it, and the
--- token's number, 0 for none; the tokens of plain bytes; and the first nodes of all others. texts: by token number
--- from 1 its bytes; nil for tokens that are no text.
function matcher.tree(texts, n)
  local order, total = {}, 0
  for token = 1, n do
    if texts[token] and texts[token] ~= "" then
      order[#order + 1] = token
      total = total + #texts[token]
    end
  end
  table.sort(order, function(a, b)
    if texts[a] ~= texts[b] then return texts[a] < texts[b] end
    return a < b
  end)
  local new = ffi.typeof "int32_t[?]"
  local tree = {n = 0, byte = new(total + 1), depth = new(total + 1), past = new(total + 1),
    token = new(total + 1), plain = {}, others = {}}
  local path, last = {}, ""
  for _, token in ipairs(order) do
    local text, common = texts[token], 0
    local most = math.min(#last, #text)
    while common < most and last:byte(common + 1) == text:byte(common + 1) do common = common + 1 end
    if text == last then common = common - 1 end -- a node has one token
    for depth = #last, common + 1, -1 do tree.past[path[depth]] = tree.n end
    for depth = common + 1, #text do
      local node = tree.n
      tree.byte[node], tree.depth[node], tree.token[node], path[depth] = text:byte(depth), depth, 0, node
      tree.n = node + 1
    end
    tree.token[tree.n - 1], last = token, text
  end
  for depth = #last, 1, -1 do tree.past[path[depth]] = tree.n end
  local node = 0
  while node < tree.n do
    if is_plain(tree.byte[node]) then
      if tree.token[node] > 0 then tree.plain[#tree.plain + 1] = tree.token[node] end
      node = node + 1
    else
      tree.others[#tree.others + 1] = node
      node = tree.past[node]
    end
  end
  return tree
end

-- Sets forbidden[token - 1] to 0 for the tokens up to `most` of the nodes from `node` to `last - 1` that may follow.
-- path: states by depth, up to that above the first node.
local function allow(self, tree, path, node, last, forbidden, most)
  local bytes, depths, past, tokens = tree.byte, tree.depth, tree.past, tree.token
  while node < last do
    local depth, byte = depths[node], bytes[node]
    local from = path[depth - 1]
    local following = from[byte]
    if following == nil then following = after_byte(self, from, byte) end
    if following then
      path[depth] = following
      if tokens[node] > 0 and tokens[node] <= most then forbidden[tokens[node] - 1] = 0 end
      node = node + 1
    else
      node = past[node]
    end
  end
end

-- Does so for all tokens in a state.
local function allow_all(self, tree, state, forbidden, most)
  if keeps_plain(self, state) then
    for _, token in ipairs(tree.plain) do
      if token <= most then forbidden[token - 1] = 0 end
    end
    for _, node in ipairs(tree.others) do
      allow(self, tree, {[tree.depth[node] - 1] = state}, node, tree.past[node], forbidden, most)
    end
  else
    allow(self, tree, {[0] = state}, 0, tree.n, forbidden, most)
  end
end

--- Returns bool [vocabulary], true for tokens that may not follow in a state. ends: the set of tokens that end a text.
function Matcher:mask(tree, state, vocabulary, ends)
  local mask = self.masks[state]
  if mask then return mask end
  mask = core.ops.ones({vocabulary}, {dtype = "bool"})
  local forbidden = ffi.cast("uint8_t *", mask:data_ptr())
  allow_all(self, tree, state, forbidden, vocabulary)
  for token in pairs(state.accepts and ends or {}) do
    if token <= vocabulary then forbidden[token - 1] = 0 end
  end
  if self.n_masks == MOST_MASKS then self.masks, self.n_masks = {}, 0 end
  self.masks[state], self.n_masks = mask, self.n_masks + 1
  return mask
end

return matcher
