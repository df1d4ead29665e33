--- Returns a new list of the entries of a list from `first` (1) to `last` (the end). {unpack(list)} fails for more than
--- about 7990 entries.
return function(list, first, last)
  local copy = {}
  for i = first or 1, last or #list do copy[#copy + 1] = list[i] end
  return copy
end
