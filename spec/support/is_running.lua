--- Returns whether a process, by its id, has not ended; a zombie has, and waits for its parent. It may end between the
--- opening of its state and the reading.
return function(pid)
  local file = io.open("/proc/" .. pid .. "/stat")
  local text = file and file:read "*a" or ""
  if file then file:close() end
  return text ~= "" and not text:find(") Z ", 1, true)
end
