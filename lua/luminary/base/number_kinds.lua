--- Makes kinds of numbers for options.lua and for command lines, which are read without luminary.core, too. A kind is a
--- name for messages, and a function that returns a value of the kind, or nil for another.

-- Returns the maker of kinds of the numbers for which is(v) is true, from `low` to `high`, which may be nil. opens,
-- closes: true if low, or high, is not one of them. one, two: the text for messages of low alone, and of both.
local function maker(what, format, is, one, two, opens, closes)
  local function shown(bound)
    local m, e = math.frexp(bound)
    return m == 0.5 and math.abs(e) > 20 and "2^" .. e - 1 or format:format(bound)
  end
  return function(low, high)
    local text = low and (high and two or one):format(shown(low), high and shown(high)) or ""
    low, high = low or -1 / 0, high or 1 / 0
    return {what .. text, function(v)
      if type(v) ~= "number" or not is(v) or v < low or v > high then return nil end
      if not (opens and v == low or closes and v == high) then return v end
    end}
  end
end

local function is_integer(v) return v == math.floor(v) and math.abs(v) < 2 ^ 53 end
local function is_finite(v) return v - v == 0 end
local least, range = " of at least %s", " from %s to %s"

return {
  integer = maker("an integer", "%d", is_integer, least, range),
  finite = maker("a number", "%g", is_finite, least, range),
  above = maker("a number", "%g", is_finite, " above %s", " above %s and at most %s", true),
  below = maker("a number", "%g", is_finite, nil, " from %s to below %s", false, true),
  between = maker("a number", "%g", is_finite, nil, " between %s and %s", true, true),
}
