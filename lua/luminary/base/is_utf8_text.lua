--- is_utf8_text(s): Returns whether a string is UTF-8 without a NUL byte.

-- UTF-8 as in RFC 3629: no overlong forms, no surrogates.
local multibyte = {
  "[\194-\223]c", "\224[\160-\191]c", "[\225-\236\238\239]cc", "\237[\128-\159]c", "\240[\144-\191]cc",
  "[\241-\243]ccc", "\244[\128-\143]cc",
}
for i, pattern in ipairs(multibyte) do multibyte[i] = pattern:gsub("c", "[\128-\191]") end

local function is_text(s)
  if s:find("%z") then return false end
  for _, pattern in ipairs(multibyte) do
    if not s:find("[\128-\255]") then return true end
    s = s:gsub(pattern, ".")
  end
  return not s:find("[\128-\255]")
end

return is_text
