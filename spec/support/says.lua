--- Fails unless f(…) raises an error whose message, without the script's line, matches a pattern.
return function(pattern, f, ...)
  local n, arguments = select("#", ...), {...}
  require "luassert".error_matches(function() f(unpack(arguments, 1, n)) end, pattern)
end
