--- Fails where `got`, on any device, has another shape than `want`, or differs from it by more than the tolerance
--- (1e-10 by default).
return function(want, got, tolerance, what)
  local a, b = table.concat(want.shape, ", "), table.concat(got.shape, ", ")
  what = what or "the result"
  if a ~= b then error(("%s: shape [%s] instead of [%s]"):format(what, b, a), 2) end
  if want:numel() == 0 then return end
  local off = (want:detach():double() - got:detach():cpu():double()):abs():max():item()
  if off ~= off or off > (tolerance or 1e-10) then error(("%s: differs by %g"):format(what, off), 2) end
end
