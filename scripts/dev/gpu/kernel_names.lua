-- Shortens the names of kernels, for count_step and the case "where" of gpu_cases.lua.

-- Returns "void lm_softmax_rows<lm_load_f32, 1, false>(lm_softmax_grid, lm_load_f32)" without its parameters.
return function(name)
  name = name:gsub("^void ", "")
  local depth = 0
  for i = 1, #name do
    local c = name:sub(i, i)
    depth = depth + (c == "<" and 1 or c == ">" and -1 or 0)
    if c == "(" and depth == 0 then return name:sub(1, i - 1) end
  end
  return name
end
