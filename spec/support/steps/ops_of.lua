--- Returns the names of the ops that the i-th segment of a compiled function runs, with "+" before one that is computed
--- with that before it: "linear +tanh sum".
return function(compiled, i)
  local ops = {}
  for joins, name in (compiled:explain(i, true) or ""):gmatch "  ([ +]) [^\n]- = ([%w_]+)[^\n]*\n" do
    ops[#ops + 1] = (joins == "+" and "+" or "") .. name
  end
  return table.concat(ops, " ")
end
