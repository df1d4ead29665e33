--- Encodes and decodes base64 (RFC 4648) of short texts.
local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local base64 = {}

--- Returns bytes as base64.
function base64.encode(bytes)
  local text = bytes:gsub("..?.?", function(group)
    local a, b, c = group:byte(1, 3)
    local bits, out = a * 65536 + (b or 0) * 256 + (c or 0), ""
    for k = 18, 24 - 6 * (#group + 1), -6 do
      local at = math.floor(bits / 2 ^ k) % 64 + 1
      out = out .. letters:sub(at, at)
    end
    return out .. ("="):rep(3 - #group)
  end)
  return text
end

--- Returns the bytes that a base64 text encodes in groups of 4 letters; the last group may end in "=".
function base64.decode(text)
  local bytes = text:gsub("....", function(group)
    group = group:gsub("=", "")
    local bits = 0
    for i = 1, 4 do bits = bits * 64 + (i <= #group and letters:find(group:sub(i, i), 1, true) - 1 or 0) end
    return string.char(math.floor(bits / 65536), math.floor(bits / 256) % 256, bits % 256):sub(1, #group - 1)
  end)
  return bytes
end

return base64
