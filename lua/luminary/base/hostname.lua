--- Returns this machine's name as its kernel has it, or nil.
return function()
  local file = io.open "/proc/sys/kernel/hostname"
  local name = file and file:read "*l"
  if file then file:close() end
  return name ~= "" and name or nil
end
