--- Decodes ids that arrive one by one: decodes the last few ids with and without the new one, since a token's text
--- depends on the tokens before it.
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"

local BROKEN = "\239\191\189$" -- U+FFFD at the end: bytes that are not, or not yet, a character
local MOST_WAITING = 8 -- most tokens that wait; the bytes of more are no character

return function(decode, write)
  local ids, prefix, prefix_ids = {}, "", 0

  -- Writes the text after the prefix; the new ids become the prefix of the next ones.
  local function emit(text)
    local fresh = text:sub(#prefix + 1)
    ids = lists.slice(ids, prefix_ids + 1)
    prefix_ids = #ids
    prefix = decode(ids)
    return write(fresh)
  end

  return function(id, ...)
    local more = select("#", ...)
    if more > 0 then options.fail("streamer: expected one sequence, got %d ids at once", more + 1) end
    if id ~= nil then ids[#ids + 1] = options.arg("streamer", "id", id, "integer") end
    local text = #ids > 0 and decode(ids) or ""
    local waits = id ~= nil and text:find(BROKEN) and #ids - prefix_ids < MOST_WAITING
    if #text > #prefix and not waits then return emit(text) end
  end
end
