--- Returns this process's rank, from 0, and the number of ranks: 0 and 1 without a process group, for which nothing of
--- luminary.distributed is loaded.
return function()
  local dist = package.loaded["luminary.distributed"]
  if not dist or not dist.is_initialized() then return 0, 1 end
  return dist.get_rank(), dist.get_world_size()
end
