--- The entries of a list from `first` (1) to `last` (all) as a list of their own. {unpack(list)} would do with some
--- 7990 at most.
return function(list, first, last)
  local copy = {}
  for i = first or 1, last or #list do copy[#copy + 1] = list[i] end
  return copy
end
