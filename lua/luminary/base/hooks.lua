--- Adds fn to the list of hooks holder[name], which may be nil. Returns a handle with :remove().
--- Lists are replaced, never changed, so that a running call keeps its own.
return function(holder, name, fn)
  local entry = function(...) return fn(...) end -- a new function, since fn may be registered twice
  local function rebuilt(skip, extra)
    local hooks = {}
    for _, hook in ipairs(holder[name] or {}) do
      if hook ~= skip then hooks[#hooks + 1] = hook end
    end
    hooks[#hooks + 1] = extra
    return hooks[1] and hooks or nil
  end
  holder[name] = rebuilt(nil, entry)
  return {remove = function() holder[name] = rebuilt(entry) end}
end
