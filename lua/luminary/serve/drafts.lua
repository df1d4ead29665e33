--- Drafts the tokens that may follow conversations, with a small language model or from the text so far.
local drafts = {}

local LONGEST, SHORTEST = 4, 2 -- tokens of a match

-- Returns n tokens that followed the last tokens of a list where these occurred before, at the latest of the longest
-- matches (Saxena 2023, "Prompt Lookup Decoding"). There may be none.
local function from_text(ids, n)
  local last, longest, at, list = #ids, SHORTEST - 1, nil, {}
  for i = last - 1, 1, -1 do
    local k = 0
    while k < LONGEST and k < i and ids[i - k] == ids[last - k] do k = k + 1 end
    if k > longest then longest, at = k, i end
    if k == LONGEST then break end
  end
  for i = 1, at and n or 0 do list[i] = at + i <= last and ids[at + i] or list[at + i - last] end
  return list
end

-- Drafts the likeliest tokens of the draft net, which first computes the tokens that it has not seen.
local function from_net(self, plan, compute)
  local rows = {}
  for i, each in ipairs(plan) do
    local r, last = each.r, each.first + each.n - 1
    r.drafted = math.min(r.drafted, r.computed) -- other drafts were wrong
    local n = math.min(last - r.drafted, self.settings.chunk)
    if r.drafted + n < last then each.wants = 0 end
    rows[i] = {r = r, of = each, first = r.drafted + 1, n = n, drafts = {}, keep = each.wants > 0 and 1 or 0}
  end
  while #rows > 0 do
    local best, row, following = compute(self, self.settings.draft, self.draft_cache, rows):argmax(2):tolist(), 0, {}
    for _, each in ipairs(rows) do
      local r, list = each.r, each.of.drafts
      r.drafted, row = each.first + each.n + #each.drafts - 1, row + each.keep
      if each.keep > 0 then list[#list + 1] = best[row] end
      if #list < each.of.wants then
        following[#following + 1] = {
          r = r, of = each.of, first = #r.ids + #list, n = 0, drafts = {best[row]}, keep = 1,
        }
      end
    end
    rows = following
  end
end

--- Adds drafts to the entries of a scheduler's plan whose next tokens are chosen. compute: the scheduler's function.
function drafts.add(self, plan, compute)
  local settings, choosing, most = self.settings, 0, 0
  for _, each in ipairs(plan) do choosing = choosing + each.keep end
  for _, each in ipairs(plan) do
    local r = each.r
    each.wants = math.min(math.floor(settings.draft_tokens / choosing), r.reach, r.o.max_new_tokens - r.count - 1)
    if each.keep == 0 or not self.pages:grow(r.pages, #r.ids + each.wants) then each.wants = 0 end
    if settings.draft == "prompt" then each.drafts = from_text(r.ids, each.wants) end
    most = math.max(most, each.wants)
  end
  if settings.draft ~= "prompt" and most > 0 then from_net(self, plan, compute) end
  for _, each in ipairs(plan) do each.keep = each.keep + #each.drafts end
end

--- Counts the drafts of a conversation, and changes the number of the next as transformers' heuristic schedule does.
function drafts.learn(r, drafted, accepted, most)
  if drafted == 0 then return end
  r.drafts, r.accepted = r.drafts + drafted, r.accepted + accepted
  r.reach = accepted == drafted and math.min(r.reach + 2, most) or math.max(r.reach - 1, 1)
end

return drafts
