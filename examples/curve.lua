-- Learning curves as SVG, for the examples that have --curve FILE.
local curve = {}

local WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 320, 56, 40, 16 -- of the picture, and of the margins around the axes
local COLORS = {"#4c8bf5", "#e8710a", "#34a853"}

-- About five round numbers from low to high.
local function ticks(low, high)
  local step = 10 ^ math.floor(math.log10((high - low) / 5))
  for _, factor in ipairs {2, 2.5, 2} do -- 2, 5 and 10 times the power of ten
    if (high - low) / step > 6 then step = step * factor end
  end
  local list = {}
  for value = math.ceil(low / step) * step, high + step * 1e-9, step do list[#list + 1] = value end
  return list
end

--- curve.write(path, lines, {x = label, y = label}): draws each line, {name = text, {x, y}, …} with one point or more.
function curve.write(path, lines, labels)
  local from, to = {math.huge, math.huge}, {-math.huge, -math.huge}
  for _, line in ipairs(lines) do
    for _, point in ipairs(line) do
      for k = 1, 2 do from[k], to[k] = math.min(from[k], point[k]), math.max(to[k], point[k]) end
    end
  end
  for k = 1, 2 do
    if to[k] == from[k] then to[k] = from[k] + 1 end
  end
  local function x_at(x) return LEFT + (x - from[1]) / (to[1] - from[1]) * (WIDTH - LEFT - TOP) end
  local function y_at(y) return HEIGHT - BOTTOM - (y - from[2]) / (to[2] - from[2]) * (HEIGHT - BOTTOM - TOP) end

  local out = {}
  local function add(...) out[#out + 1] = string.format(...) end
  add('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" '
    .. 'fill="#888">', WIDTH, HEIGHT)
  for _, x in ipairs(ticks(from[1], to[1])) do
    add('<text x="%.1f" y="%d" text-anchor="middle">%g</text>', x_at(x), HEIGHT - BOTTOM + 16, x)
  end
  for _, y in ipairs(ticks(from[2], to[2])) do
    add('<path d="M%d %.1fH%d" stroke="#888" stroke-opacity="0.3"/>', LEFT, y_at(y), WIDTH - TOP)
    add('<text x="%d" y="%.1f" text-anchor="end">%g</text>', LEFT - 6, y_at(y) + 4, y)
  end
  add('<text x="%d" y="%d" text-anchor="middle">%s</text>', (LEFT + WIDTH) / 2, HEIGHT - 6, labels.x)
  add('<text transform="translate(14 %d) rotate(-90)" text-anchor="middle">%s</text>', HEIGHT / 2, labels.y)
  for i, line in ipairs(lines) do
    local points, color = {}, COLORS[(i - 1) % #COLORS + 1]
    for k, point in ipairs(line) do points[k] = ("%.1f,%.1f"):format(x_at(point[1]), y_at(point[2])) end
    add('<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>', table.concat(points, " "), color)
    add('<text x="%d" y="%d" text-anchor="end" fill="%s">%s</text>', WIDTH - TOP - 8, TOP + 18 * i, color, line.name)
  end
  add "</svg>"

  local file = assert(io.open(path, "w"))
  file:write(table.concat(out, "\n"), "\n")
  file:close()
end

return curve
