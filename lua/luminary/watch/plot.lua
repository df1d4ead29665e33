--- watch.plot: Draws curves, images and confusion matrices on the terminal, or into PNG and SVG files.
local core = require "luminary.core"
local base64 = require "luminary.base.base64"
local characters = require "luminary.base.characters"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local rank_and_size = require "luminary.base.rank_and_size"
local signature = require "luminary.base.signature"
local terminal = require "luminary.base.terminal"
local gnuplot = require "luminary.watch.gnuplot"
local text_image = require "luminary.watch.text_image"

local plot = {}

local fail = options.fail
local quoted = gnuplot.quoted

local PIXELS = {800, 480} -- size of a chart of curves
local MOST_POINTS = 12000 -- points of a curve; gnuplot draws these in about a second, 10^6 in minutes
local COLORS = {"#3f6fd8", "#e8710a", "#2a9d4a", "#c2362f", "#8a56c2", "#7a5a48", "#d863a8", "#666666"}

local function check_path(who, path)
  local ending = path and (path:match "%.(%w+)$" or ""):lower()
  if path and ending ~= "png" and ending ~= "svg" then
    options.must_be(who, "path", "a name that ends in .png or .svg", path)
  end
  return ending
end

-- ---- curves

-- Returns the numbers of a 1-d tensor, or of a list of numbers and tensors of one element.
local function numbers_of(who, name, values)
  if core.is_tensor(values) then
    if values.ndim ~= 1 then options.wrong_shape(who, name, values, "[points]") end
    return values:detach():cpu():double():totable()
  end
  local list = {}
  for i, value in ipairs(options.list(who, name, options.arg(who, name, values, "list"))) do
    list[i] = options.arg(who, ("%s[%d]"):format(name, i), value, "scalar")
  end
  return list
end

-- Returns lists of numbers, from the numbers of one curve, a 2-d tensor or a list of curves.
local function curves_of(who, name, values)
  local curves = {}
  if core.is_tensor(values) then
    if values.ndim == 1 then return {numbers_of(who, name, values)} end
    if values.ndim ~= 2 then options.wrong_shape(who, name, values, "[points] or [curves, points]") end
    for i = 1, values.shape[1] do curves[i] = numbers_of(who, name, values:select(1, i)) end
    return curves
  end
  if not (type(values) == "table" and options.is_plain(values)) then
    options.must_be(who, name, "a tensor or a list", values)
  end
  local first = values[1]
  if type(first) == "number" or core.is_tensor(first) and first.ndim == 0 then
    return {numbers_of(who, name, values)}
  end
  for i, each in ipairs(options.list(who, name, values)) do
    curves[i] = numbers_of(who, ("%s[%d]"):format(name, i), each)
  end
  return curves
end

-- Returns the x values of each curve: 1, 2, … without `x`.
local function x_of(who, x, curves)
  local given, all = x ~= nil and curves_of(who, "x", x), {}
  if given and #given ~= 1 and #given ~= #curves then options.wrong_length(who, "x", #curves, "curve", #given) end
  for i, curve in ipairs(curves) do
    all[i] = given and (given[i] or given[1]) or {}
    if not given then
      for k = 1, #curve do all[i][k] = k end
    elseif #all[i] ~= #curve then
      options.wrong_length(who, #given == 1 and "x" or ("x[%d]"):format(i), #curve, "point", #all[i])
    end
  end
  return all
end

-- Returns true if gnuplot can draw a coordinate: it computes with ranges in double.
local function is_drawn(value, log) return math.abs(value) < 1e300 and (not log or value > 0) end

-- Adds points between two indices: the first, the last, and those of the minimal and maximal coordinates.
local function add_extremes(lines, x, y, from, to)
  local indices = {from, to}
  if to - from > 1 then
    local left, right, low, high = from, from, from, from
    for k = from + 1, to do
      if x[k] < x[left] then left = k end
      if x[k] > x[right] then right = k end
      if y[k] < y[low] then low = k end
      if y[k] > y[high] then high = k end
    end
    indices = {from, left, right, low, high, to}
    table.sort(indices)
  end
  for i, k in ipairs(indices) do
    if k ~= indices[i - 1] then lines[#lines + 1] = ("%.17g %.17g"):format(x[k], y[k]) end
  end
end

-- Adds the points of a curve to `lines`, an empty line in place of those that cannot be drawn. Of more than MOST_POINTS
-- it adds the extremes of short pieces, which look the same. Returns the number of points, and true if one has no
-- neighbor, so that a line would not show it.
local function add_points(lines, x, y, opts)
  local piece = #y > MOST_POINTS and math.ceil(6 * #y / MOST_POINTS) or 1
  local count, run, lonely, from = 0, 0, false, nil
  for k = 1, #y + 1 do
    local drawn = k <= #y and is_drawn(x[k], opts.logx) and is_drawn(y[k], opts.logy)
    if from and (not drawn or k - from == piece) then
      add_extremes(lines, x, y, from, k - 1)
      from = nil
    end
    if drawn then
      from, count, run = from or k, count + 1, run + 1
    elseif run > 0 then
      lines[#lines + 1], lonely, run = "", lonely or run == 1, 0
    end
  end
  return count, lonely
end

-- Widens a range to that of the values that can be drawn.
local function range_of(values, log, low, high)
  for _, value in ipairs(values) do
    if is_drawn(value, log) then low, high = math.min(low, value), math.max(high, value) end
  end
  return low, high
end

-- Returns the line that lets an axis distinguish tics of close numbers, such as 1e9 and 1e9 + 1; nil if gnuplot's own
-- six digits suffice.
local function tics_format(axis, curves, log)
  local low, high = math.huge, -math.huge
  for _, curve in ipairs(curves) do low, high = range_of(curve, log, low, high) end
  local most, range = math.max(math.abs(low), math.abs(high)), high - low
  if log or range <= 0 or most <= range * 1e4 then return nil end
  return ("set format %s '%%.%dg'"):format(axis, math.min(math.ceil(math.log10(most / range)) + 3, 16))
end

-- Returns the columns and rows of a chart: a character is twice as high as wide, so it has about 0.3 rows a column.
local function chart_size()
  local columns, rows = terminal.size()
  columns = math.max(columns - 1, 30) -- a full line wraps on some terminals
  return {columns, math.max(12, math.min(rows - 2, math.floor(columns * 0.3)))}
end

--- Draws curves: lines through points.
plot.curves = signature.of([[plot.curves(y, {x: any, names: string[], title = "", xlabel = "", ylabel = "",
  logx = false, logy = false, path: string, all_ranks = false})]], function(y, opts)
  local who = "plot.curves"
  check_path(who, opts.path)
  local curves = curves_of(who, "y", y)
  if #curves == 0 then fail("%s: y must not be empty", who) end
  local x, names = x_of(who, opts.x, curves), opts.names
  if names and #names ~= #curves then options.wrong_length(who, "names", #curves, "curve", #names) end
  local size = opts.path and PIXELS or chart_size()
  local lines = {
    gnuplot.labels(opts, not opts.path and size[1] or nil), "set border 3 linecolor rgb '#555555'", "set tics nomirror",
    names and "set key center horizontal width 2 " .. (opts.path and "bmargin Left reverse height 1" or "tmargin")
      or "unset key",
  }
  if opts.path then lines[#lines + 1] = "set grid linetype 1 linewidth 0.5 linecolor rgb '#dddddd'" end
  if opts.logx then lines[#lines + 1] = "set logscale x" end
  if opts.logy then lines[#lines + 1] = "set logscale y" end
  lines[#lines + 1] = tics_format("x", x, opts.logx)
  lines[#lines + 1] = tics_format("y", curves, opts.logy)
  local styles, count = {}, 0
  for i, curve in ipairs(curves) do
    if #curve == 0 then fail("%s: %s must not be empty", who, #curves == 1 and "y" or ("y[%d]"):format(i)) end
    lines[#lines + 1] = ("$curve%d << END"):format(i)
    local drawn, has_lonely = add_points(lines, x[i], curve, opts)
    lines[#lines + 1] = "END"
    count = count + drawn
    if drawn > 0 then
      local style = has_lonely and "linespoints pointtype 7 pointsize 0.6" or "lines"
      style = ("%s linetype %d dashtype %d linewidth 1.5 linecolor rgb '%s'"):format(style, i,
        math.ceil(i / #COLORS), COLORS[(i - 1) % #COLORS + 1])
      styles[#styles + 1] = ("$curve%d using 1:2 with %s title %s"):format(i, style, quoted(names and names[i] or ""))
    end
  end
  if count == 0 then
    fail("%s: no point can be drawn; x and y must be finite, within 1e300%s", who,
      (opts.logx or opts.logy) and ", and positive on a logarithmic axis" or "")
  end
  lines[#lines + 1] = "plot " .. table.concat(styles, ", ")
  if not opts.all_ranks and rank_and_size() ~= 0 then return end
  gnuplot.draw(who, opts.path, size, lines)
end)

-- ---- confusion matrices

local CHARACTER = {8, 14} -- about the pixels of a character in a file
local CELL, MOST = 48, 1800 -- least pixels of a cell, most of a matrix

local function longest_of(list)
  local most = 0
  for _, text in ipairs(list) do most = math.max(most, characters.count(text)) end
  return most
end

-- Returns the texts of the cells, row by row: integers, or two decimals; none for NaN.
local function cell_texts(values)
  local integral = lists.every(values, function(value) return not is_drawn(value) or value == math.floor(value) end)
  return lists.map(values, function(value)
    return is_drawn(value) and (integral and "%.0f" or "%.2f"):format(value) or ""
  end)
end

-- Returns the size of the drawing on the terminal, and its lines of tics and margins; nil if the numbers do not fit.
local function text_layout(n, names, width, opts)
  local left = math.min(longest_of(names), 20) + 3
  local cell = math.min(math.floor((terminal.size() - left - 4) / n), math.max(width, math.min(left - 3, 10)) + 2)
  if cell < width + 1 then return nil end
  local function tics(most)
    return gnuplot.tics(lists.map(names, function(name) return characters.first(name, most) end))
  end
  return {left + n * cell + 3, n + 8}, {
    gnuplot.labels(opts, left + n * cell + 3), "set xtics scale 0 " .. tics(cell - 1),
    "set ytics scale 0 " .. tics(20), "set lmargin " .. left, "set rmargin 2", "set tmargin 3",
    "set bmargin 3",
  }
end

-- Returns the size and layout of a drawing in a file, and true if cells have room for numbers. Some names that would
-- overlap are omitted. All positions are in pixels: gnuplot's own would depend on its estimate of the names' widths.
local function pixel_layout(n, names, width, opts)
  local cell = math.floor(math.min(math.max(CHARACTER[1] * width + 16, CELL), MOST / n))
  local step, longest = math.ceil(CHARACTER[2] / cell), CHARACTER[1] * longest_of(names)
  local shown, rotated, has_numbers = {}, longest > cell * step - 4, cell >= CHARACTER[1] * width + 8
  for i, name in ipairs(names) do shown[i] = (i - 1) % step == 0 and name or "" end
  local left, right, bottom, top = longest + 50, has_numbers and 30 or 120, (rotated and longest or 14) + 50, 50
  local w, h = left + n * cell + right, bottom + n * cell + top
  local function at(x, y) return ("screen %.6f, screen %.6f"):format(x / w, y / h) end
  return {w, h}, {
    "set title " .. quoted(opts.title),
    ("set label 1 %s at %s center"):format(quoted(opts.xlabel), at(left + n * cell / 2, 20)),
    ("set label 2 %s at %s center rotate by 90"):format(quoted(opts.ylabel), at(20, bottom + n * cell / 2)),
    "set xtics scale 0 " .. (rotated and "rotate by 90 right " or "") .. gnuplot.tics(shown),
    "set ytics scale 0 " .. gnuplot.tics(shown),
    ("set lmargin at screen %.6f"):format(left / w), ("set rmargin at screen %.6f"):format(1 - right / w),
    ("set bmargin at screen %.6f"):format(bottom / h), ("set tmargin at screen %.6f"):format(1 - top / h),
    has_numbers and "unset colorbox" or ("set colorbox user origin %s size screen %.6f, screen %.6f"):format(
      at(w - right + 30, bottom), 20 / w, n * cell / h),
  }, has_numbers
end

-- Draws a matrix as an image: shades from low to high.
local function draw_shades(matrix, low, high, opts)
  if opts.title ~= "" then io.stdout:write(opts.title, "\n") end
  text_image.draw(((matrix - low) / (high - low)):nan_to_num(0):unsqueeze(1))
  io.stdout:write(("rows: %s, columns: %s; white is %.4g\n"):format(opts.ylabel, opts.xlabel, high))
  io.stdout:flush()
end

--- Draws a confusion matrix, as lm.metrics.ConfusionMatrix computes it.
plot.confusion_matrix = signature.of([[plot.confusion_matrix(matrix: tensor, {names: string[], title = "",
  xlabel = "Predicted class", ylabel = "True class", path: string, all_ranks = false})]], function(matrix, opts)
  local who = "plot.confusion_matrix"
  check_path(who, opts.path)
  if matrix.ndim ~= 2 or matrix.shape[1] ~= matrix.shape[2] then
    options.wrong_shape(who, "matrix", matrix, "[classes, classes]", matrix.ndim == 3 and "draw each label's matrix[i]"
      or nil)
  end
  local n, names = matrix.shape[1], opts.names or {}
  if n == 0 then fail("%s: matrix must not be empty", who) end
  if opts.names and #names ~= n then options.wrong_length(who, "names", n, "class", #names) end
  for i = 1, opts.names and 0 or n do names[i] = tostring(i) end
  matrix = matrix:detach():cpu():double()
  local values = matrix:reshape(-1):totable()
  local texts, low, high = cell_texts(values), range_of(values, false, 0, 0)
  if high == low then high = low + 1 end
  if not opts.all_ranks and rank_and_size() ~= 0 then return end

  local width = longest_of(texts)
  local size, layout, has_numbers = (opts.path and pixel_layout or text_layout)(n, names, width, opts)
  if not size then return draw_shades(matrix, low, high, opts) end
  local lines = {
    ("set xrange [-0.5:%.1f]"):format(n - 0.5), ("set yrange [%.1f:-0.5]"):format(n - 0.5), "unset key",
    "set palette defined (0 '#f4f7fb', 1 '#08306b')", ("set cbrange [%.17g:%.17g]"):format(low, high),
  }
  lists.append(lines, layout)
  lines[#lines + 1] = "$cells << END"
  for i, value in ipairs(values) do
    if texts[i] ~= "" then
      local is_dark = (value - low) / (high - low) > 0.5
      lines[#lines + 1] = ("%d %d %.17g %s %d"):format((i - 1) % n, math.floor((i - 1) / n), value, texts[i],
        is_dark and 0xffffff or 0x222222)
    end
  end
  lines[#lines + 1] = "END"
  local numbers = "$cells using 1:2:4:5 with labels textcolor rgb variable"
  local boxes = "$cells using 1:2:(0.5):(0.5):3 with boxxyerror fillstyle solid noborder linecolor palette"
  lines[#lines + 1] = "plot " .. (not opts.path and "$cells using 1:2:4 with labels" or has_numbers and boxes .. ", "
    .. numbers or boxes)
  gnuplot.draw(who, opts.path, size, lines, true)
end)

-- ---- images

-- Returns an SVG file that contains the PNG.
local function svg_of(png, width, height)
  return ([[
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 %d %d">
<image width="%d" height="%d" style="image-rendering: pixelated" xlink:href="data:image/png;base64,%s"/>
</svg>
]]):format(width, height, width, height, base64.encode(png))
end

--- Draws an image, or a batch of images as a grid: uint8, or floats from 0 to 1.
plot.images = signature.of([[plot.images(images, {nrow: count = 8, padding: natural = 2, normalize = false,
  value_range: table, scale_each = false, pad_value = 0, path: string, all_ranks = false})]], function(images, opts)
  local who = "plot.images"
  local ending, path, all_ranks = check_path(who, opts.path), opts.path, opts.all_ranks
  opts.path, opts.all_ranks = nil, nil
  if type(images) == "table" and #images == 0 then fail("%s: images must not be empty", who) end
  local picture = require("luminary.vision.make_grid").make_grid(images, opts):detach():cpu()
  local channels, height, width = unpack(picture.shape)
  if channels ~= 3 and channels ~= 4 then options.must_be(who, "the number of channels", "1, 3 or 4", channels) end
  if height * width == 0 then fail("%s: images must not be empty", who) end
  if picture.dtype ~= "uint8" then
    if not core.is_floating_point(picture) then options.wrong_dtype(who, "images", "uint8 or floating", picture) end
    picture = picture:float():nan_to_num(0):mul(255):add_(0.5):clamp_(0, 255):to "uint8"
  end
  if not all_ranks and rank_and_size() ~= 0 then return end
  if not path then
    text_image.draw(picture:float():div_(255))
    return io.stdout:flush()
  end
  local png = core.encode_png(picture:contiguous(), 6)
  if ending == "svg" then
    local ffi = require "ffi"
    png = svg_of(ffi.string(ffi.cast("const char *", png:data_ptr()), png:numel()), width, height)
  end
  core.write_pieces(path, {png}, who)
end)

return options.strict("watch.plot", plot)
