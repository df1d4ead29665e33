--- Returns the message of the error that f(…) raises; fails if it raises none.
return function(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(problem)
end
