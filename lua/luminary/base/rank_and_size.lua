--- Returns this process's rank, from 0, and the number of ranks; 0 and 1 without a process group. It loads nothing of
--- luminary.distributed.
return function()
  local groups = package.loaded["luminary.distributed.groups"]
  if not (groups and groups.default) then return 0, 1 end
  return groups.default.rank, groups.default.size
end
