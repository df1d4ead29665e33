--- Finds parameters that have no memory.

--- is_empty(t): Returns true for a parameter of a module that nn.utils.init_empty_weights made: its elements share
--- memory.
return function(t)
  for d = 1, t.ndim do
    if t:size(d) > 1 and t:stride(d) > 0 then return false end
  end
  return t:numel() > 1
end
