--- Decodes the tokens of net:generate by tokenizer:decode(list of ids): finds stop strings, and passes new text to
--- on_text.
local options = require "luminary.base.options"

local generated_text = {}

local function text_of(tokenizer, tokens)
  local text = tokenizer:decode(tokens)
  if type(text) ~= "string" then
    options.must_be("generate", "the result of tokenizer:decode(ids)", "a string", text)
  end
  return text
end

local function decoded(tokenizer, tokens, first)
  local part = {}
  for i = first, #tokens do part[#part + 1] = tokens[i] end
  return text_of(tokenizer, part)
end

--- Returns true if the last token of a list completes one of `strings` or extends beyond its end, as transformers'
--- stop_strings.
function generated_text.stops(tokenizer, strings, tokens)
  local longest = 0
  for _, each in ipairs(strings) do longest = math.max(longest, #each) end
  local first = math.max(1, #tokens - longest) -- a token has at least one byte
  local text = decoded(tokenizer, tokens, first)
  local last = table.remove(tokens)
  local before = decoded(tokenizer, tokens, first)
  tokens[#tokens + 1] = last
  local same = 0 -- bytes of `text` that `before` has; the bytes of a character cut in two may change
  while same < #before and before:byte(same + 1) == text:byte(same + 1) do same = same + 1 end
  for _, each in ipairs(strings) do
    local from = text:find(each, math.max(1, same + 2 - #each), true)
    if from then return true end
  end
  return false
end

local CUT = "\239\191\189$" -- U+FFFD at the end, in the place of a character whose last bytes are missing

--- Returns a function to call with each token of a row, and with nil at its end. It passes complete characters to
--- on_text(piece), or with `row` to on_text(piece, row), and returns on_text's result.
function generated_text.text_callback(tokenizer, on_text, row)
  local tokens, emitted = {}, 0
  return function(token)
    tokens[#tokens + 1] = token
    if #tokens == 0 then return end
    local text = text_of(tokenizer, tokens)
    if token and text:find(CUT) then return end
    local piece = text:sub(emitted + 1)
    emitted = #text
    if text:find "\n$" then tokens, emitted = {}, 0 end -- a new start, so that long texts are not decoded again
    if piece == "" then return nil end
    if row then return on_text(piece, row) end
    return on_text(piece) -- the text alone, so that on_text may be io.write
  end
end

return generated_text
