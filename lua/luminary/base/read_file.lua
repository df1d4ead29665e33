--- read_file(path [, bytes]): Returns the text of a file, or its first bytes; nil if it cannot be opened.
return function(path, bytes)
  local file = require("io").open(path, "rb")
  if not file then return nil end
  local text = file:read(bytes or "*a") -- kernel files fail for large reads of a stated size
  file:close()
  return text
end
