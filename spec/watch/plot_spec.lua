-- lm.watch.plot: curves, confusion matrices and images, as text, PNG and SVG.
local lm = require "luminary"
local message = require "spec.support.error_of"
local pty = require "spec.support.pty"
local temp = require "spec.support.temp"

local plot = lm.watch.plot
local no_gnuplot = temp.execute "command -v gnuplot >/dev/null" ~= 0 and "no gnuplot (Debian: gnuplot-nox)" or nil

describe("watch.plot", function()
  local folder = temp.during(setup, teardown)

  -- Returns what a script prints where there is no terminal.
  local function printed(script)
    local path = temp.write(folder .. "/script.lua", "local plot = require('luminary').watch.plot\n" .. script)
    local ok, text = temp.run(folder, "luajit " .. path)
    assert(ok, text)
    return text
  end

  local function drawn(f, what, opts, ending)
    opts.path = folder .. "/picture." .. ending
    f(what, opts)
    local picture = temp.read(opts.path)
    os.remove(opts.path)
    return picture
  end

  local function pixels(...) return lm.vision.decode_image(lm.frombuffer(drawn(...), {dtype = "uint8"})) end

  -- Returns the number of pixels of about that color: edges of lines are mixed with white.
  local function count(image, r, g, b, tolerance)
    local off = image:narrow(1, 1, 3):double() - lm.tensor({r, g, b}):view(3, 1, 1)
    return off:abs():amax(1):le(tolerance or 40):sum():item()
  end

  describe("curves", function()
    it("are drawn as text", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local text = printed [[
        local lm = require "luminary"
        plot.curves({{3, 2, 1}, lm.tensor {1, 2, 3}}, {
          names = {"down", "up"}, title = "Loss", xlabel = "step", ylabel = "nats", x = {10, 20, 30}})]]
      local lines = {}
      for line in text:gmatch "[^\n]+" do
        lines[#lines + 1] = line
        assert(#line <= 79, line)
        assert.is_nil(line:find "[\27\f]")
      end
      assert.matches("^ +down %*+ +up #+$", lines[1])
      assert.matches("^ +Loss$", lines[2])
      assert.matches("^ +nats$", lines[3])
      assert.matches("^ +3 [^*]*%*.*#+$", lines[4])      -- one curve begins at the top left, one ends at the top right
      assert.matches("^ +10 .* 20 .* 30$", lines[#lines - 1])
      assert.matches("^ +step$", lines[#lines])
    end)

    it("are drawn into PNG and SVG files", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local image = pixels(plot.curves, {1, 2, 3}, {}, "png")
      assert.same({3, 480, 800}, image.shape)
      assert(count(image, 0x3f, 0x6f, 0xd8) > 500)
      assert.equal(0, count(image, 0xe8, 0x71, 0x0a))
      assert(count(pixels(plot.curves, lm.tensor({{1, 2, 3}, {3, 2, 1}}), {}, "png"), 0xe8, 0x71, 0x0a) > 500)
      local svg = drawn(plot.curves, {1, 2, 3}, {title = "<b> & é", names = {"a<b"}}, "svg")
      assert.matches("^<%?xml.*>a&lt;b<.*>&lt;b> &amp; é<.*</svg>%s*$", svg)
      assert.equal(svg, drawn(plot.curves, {1, 2, 3}, {title = "<b> & é", names = {"a<b"}}, "svg"))
    end)

    it("have the legend of a file below all labels, in the middle", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local labels = {names = {"first", "other"}, title = "Loss", xlabel = "step"}
      local svg = drawn(plot.curves, {{1, 2}, {2, 1}}, labels, "svg")
      local function at(text)
        local x, y = svg:match("translate%(([%d.]+),([%d.]+)%)[^>]*>%s*<text>" .. text .. "</text>")
        return tonumber(x), tonumber(y)
      end
      local first, below = at "first"
      local other, middle = at "other", (at "Loss")
      assert(below > select(2, at "step") + 12, below)
      assert(first < middle and middle < other + 20, middle)
    end)

    it("have gaps where values are not finite, or not positive on a logarithmic axis", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local function lengths(y, opts) -- returns the lengths of the curve's pieces, in points
        local list, path = {}, drawn(plot.curves, y, opts or {}, "svg")
          :match "<path stroke='rgb%( 63, 111, 216%)' +d='(.-)'"
        for piece in path:gmatch "M[^M]+" do list[#list + 1] = select(2, piece:gsub(",", "")) end
        return list
      end
      local nan, inf = 0 / 0, 1 / 0
      assert.same({6}, lengths {1, 2, 4, 3, 5, 1})
      assert.same({2, 3}, lengths {1, 2, nan, 3, 5, 1})
      assert.same({2, 2}, lengths {nan, 1, 2, inf, -inf, 3, 5, nan})
      assert.same({2, 3}, lengths({1, 2, 0, 3, 5, 1}, {logy = true}))
      assert.same({2, 3}, lengths({1, 2, 2, 3, 5, 1}, {logx = true, x = {1, 2, -3, 4, 5, 6}}))
      -- a point without neighbors is a dot
      assert(count(pixels(plot.curves, {1, nan, 2}, {}, "png"), 0x3f, 0x6f, 0xd8) > 8)
      assert(count(pixels(plot.curves, {{1, 2}, {3}}, {x = {{1, 2}, {1}}}, "png"), 0xe8, 0x71, 0x0a) > 4)
    end)

    it("of very many points keep their extremes and gaps", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local function pieces(y) -- counts the curve's pieces, in a file of at most 500 kB
        local svg, total = drawn(plot.curves, y, {}, "svg"), 0
        assert(#svg < 500000)
        assert.matches(">%-10<.*> ?10<", svg) -- the axis shows all
        for path in svg:gmatch "d='([^']+)" do total = total + select(2, path:gsub("M", "")) end
        return total
      end
      local y = lm.rand(300000)
      y[77777], y[222222] = 9, -9
      local before = pieces(y)
      y[150001] = 0 / 0
      assert.equal(before + 1, pieces(y))
    end)

    it("have logarithmic axes", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local function tics(opts)
        local list = {}
        for text in drawn(plot.curves, {1, 10, 100}, opts, "svg"):gmatch "> ?([%d.]+)</" do list[#list + 1] = text end
        return table.concat(list, " ")
      end
      assert.equal("1 10 100 1 1.5 2 2.5 3", tics {logy = true})
      assert.equal("1 10 100 1 10 100", tics {logy = true, logx = true, x = {1, 10, 100}})
    end)

    it("have tics that differ where numbers are close, and dashes where colors are used again", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local svg = drawn(plot.curves, {1e9, 1e9 + 1, 1e9 + 2}, {}, "svg")
      for _, text in ipairs {"1000000000", "1000000001", "1000000001.5", "1000000002"} do
        assert.matches("> ?" .. text:gsub("%.", "%%.") .. "<", svg)
      end
      local curves = {}
      for i = 1, 9 do curves[i] = {i, i + 1} end
      local _, dashed = drawn(plot.curves, curves, {}, "svg"):gsub("stroke%-dasharray", "")
      assert.equal(1, dashed)
    end)

    it("accept lists, tensors and lists of either", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local function picture(y, opts) return drawn(plot.curves, y, opts, "svg") end
      local one = picture({1, 2, 3}, {})
      assert.equal(one, picture(lm.tensor({1, 2, 3}, {dtype = "int64"}), {}))
      assert.equal(one, picture({{1, 2, 3}}, {}))
      assert.equal(one, picture({lm.tensor(1), lm.tensor(2), lm.tensor(3):requires_grad_()}, {x = lm.arange(1, 4)}))
      local two = picture({{1, 2, 3}, {3, 4, 5}}, {x = {1, 2, 3}})
      assert.equal(two, picture(lm.tensor({{1, 2, 3}, {3, 4, 5}}), {x = {{1, 2, 3}, {1, 2, 3}}}))
      assert.are_not.equal(one, two)
    end)

    it("have names that are shown as they are, and are never commands", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local mark = folder .. "/pwned"
      for _, text in ipairs {
        "'; system('touch %s'); set title '", "`touch %s`", '"; system("touch %s")', "x\nsystem('touch %s')\n",
        "x\rsystem('touch %s')", "\\'; system('touch %s') #", "@MACRO $(touch %s)", "END\n!touch %s\n", "x'\0!touch %s",
      } do
        text = text:format(mark)
        local opts = {title = text, names = {text}, xlabel = text, ylabel = text}
        local svg = drawn(plot.curves, {1, 2}, opts, "svg")
        assert.is_false(temp.exists(mark), text)
        assert.matches((text:gsub("%s", " "):gsub("%z", "\\0")), svg, 1, true)
        drawn(plot.confusion_matrix, lm.ones(2, 2), {title = text, names = {text, "100%d %s"}}, "svg")
        assert.is_false(temp.exists(mark), text)
      end
      assert.matches(">_a^b {c} 50%% ~d<", drawn(plot.curves, {1, 2}, {title = "_a^b {c} 50% ~d"}, "svg"))
      assert.matches(">(3 bytes)<", drawn(plot.curves, {1, 2}, {title = "a\255b"}, "svg"), 1, true)
    end)

    it("reject what is empty, or of a wrong shape", function()
      for _, empty in ipairs {{}, {{}}, lm.zeros(0), lm.zeros(0, 2)} do
        assert.matches("plot.curves: y must not be empty", message(plot.curves, empty), 1, true)
      end
      assert.matches("plot.curves: y[2] must not be empty", message(plot.curves, {{1}, {}}), 1, true)
      for _, row in ipairs {
        {lm.zeros(1, 1, 1), {}, "expected y to have shape [points] or [curves, points], got [1, 1, 1]"},
        {3, {}, "y must be a tensor or a list, got 3"},
        {{1, "x"}, {}, "y[2] must be a number or a tensor of one element, got string 'x'"},
        {{{1}, {"x"}}, {}, "y[2][1] must be a number or a tensor of one element, got string 'x'"},
        {{1, 2}, {x = {1}}, "x must have 2 entries, one for each point, got 1"},
        {{{1, 2}, {1}}, {x = {{1, 2}, {1, 2}}}, "x[2] must have 1 entry, one for each point, got 2"},
        {{{1}, {1}, {1}}, {x = {{1}, {1}}}, "x must have 3 entries, one for each curve, got 2"},
        {{1, 2}, {names = {"a", "b"}}, "names must have 1 entry, one for each curve, got 2"},
        {{0 / 0, 1 / 0}, {}, "no point can be drawn; x and y must be finite, within 1e300"},
        {{-1, 0}, {logy = true},
          "no point can be drawn; x and y must be finite, within 1e300, and positive on a logarithmic axis"},
        {{1, 2}, {path = "x.jpg"}, "path must be a name that ends in .png or .svg, got string 'x.jpg'"},
        {{1, 2}, {tittle = ""}, "unknown option 'tittle'; did you mean 'title'?"},
      } do
        assert.matches("plot.curves: " .. row[3], message(plot.curves, row[1], row[2]), 1, true)
      end
    end)
  end)

  describe("confusion_matrix", function()
    it("is drawn as text, a row a class", function()
      if no_gnuplot then return pending(no_gnuplot) end
      assert.equal([[
                       Animals
       True class
           +-----------------------------+
       cat |   50         2         3    |
       dog |    4        60         1    |
  it's 5%d |    0         7       1234   |
           +-----------------------------+
               cat       dog    it's 5%d
                   Predicted class
]], (printed [[
        plot.confusion_matrix(require("luminary").tensor {{50, 2, 3}, {4, 60, 1}, {0, 7, 1234}},
          {names = {"cat", "dog", "it's 5%d"}, title = "Animals"})]]:gsub("^ +\n", "")))
      assert.matches("1 |1.00       |\n  2 |0.25  0.75 |\n", printed [[
        plot.confusion_matrix(require("luminary").tensor {{1, 0/0}, {0.25, 0.75}})]], 1, true)
    end)

    it("is an image where its numbers are too many for the terminal", function()
      local text = printed [[
        plot.confusion_matrix(require("luminary").eye(39) * 3, {title = "many"})]]
      local row = 0
      for line in text:gmatch "[^\n]+" do
        if line:find "^ *@@$" then
          assert.equal(2 * row, #line:match "^ *")
          row = row + 1
        end
      end
      assert.equal(39, row)
      assert.matches("^many\n", text)
      assert.matches("rows: True class, columns: Predicted class; white is 3\n$", text)
    end)

    it("is drawn into PNG and SVG files", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local image = pixels(plot.confusion_matrix, lm.tensor({{4, 0}, {0, 4}}), {}, "png")
      assert(count(image, 0x08, 0x30, 0x6b, 2) > 2 * 40 * 40) -- the greatest, in cells of 48 x 48
      assert(count(image, 0xf4, 0xf7, 0xfb, 2) > 2 * 40 * 40) -- zeros
      image = pixels(plot.confusion_matrix, lm.tensor({{4, 0 / 0}, {0, 4}}), {}, "png")
      local zeros = count(image, 0xf4, 0xf7, 0xfb, 2)
      assert(zeros > 40 * 40 and zeros < 48 * 48) -- a gap is white
      local svg = drawn(plot.confusion_matrix, lm.tensor({{12, 34}, {56, 78}}), {names = {"a&b", "c"}}, "svg")
      for _, text in ipairs {"12", "34", "56", "78", "a&amp;b", "c", "Predicted class", "True class"} do
        assert.matches(">%s*" .. text .. "<", svg)
      end
      svg = drawn(plot.confusion_matrix, lm.eye(300), {}, "svg") -- cells of 6 pixels
      assert.matches(">298<", svg, 1, true)
      assert.is_nil(svg:find(">299<", 1, true))
      drawn(plot.confusion_matrix, lm.zeros(1, 1), {}, "png")
    end)

    it("draws what lm.metrics returns", function()
      if no_gnuplot then return pending(no_gnuplot) end
      local metric = lm.metrics.ConfusionMatrix("multiclass", {num_classes = 3, normalize = "true"})
      metric:update(lm.tensor({1, 2, 3, 3}, {dtype = "int64"}), lm.tensor({1, 2, 2, 3}, {dtype = "int64"}))
      assert.matches(">0.50<", drawn(plot.confusion_matrix, metric:compute(), {}, "svg"), 1, true)
    end)

    it("rejects other shapes", function()
      for _, row in ipairs {
        {lm.zeros(2, 3), {}, "expected matrix to have shape [classes, classes], got [2, 3]"},
        {lm.zeros(3, 2, 2), {}, "expected matrix to have shape [classes, classes], got [3, 2, 2]; draw each label's "
          .. "matrix[i]"},
        {lm.zeros(0, 0), {}, "matrix must not be empty"},
        {{{1}}, {}, "matrix must be a tensor, got a table"},
        {lm.zeros(2, 2), {names = {"a"}}, "names must have 2 entries, one for each class, got 1"},
        {lm.zeros(2, 2), {path = "x"}, "path must be a name that ends in .png or .svg, got string 'x'"},
      } do
        assert.matches("plot.confusion_matrix: " .. row[3], message(plot.confusion_matrix, row[1], row[2]), 1, true)
      end
    end)
  end)

  describe("images", function()
    it("are drawn as characters where there is no terminal", function()
      assert.equal("    ..\n--==++\n**##%%\n@@@@@@\n", printed [[
        local lm = require "luminary"
        plot.images(lm.tensor {{{0, 0.05, 0.15}, {0.35, 0.45, 0.55}, {0.65, 0.75, 0.85}, {0.95, 1, 2}}})]])
      assert.equal("  @@\n", printed "plot.images(require('luminary').tensor {{{0/0, 1/0}}})")
      local text = printed "plot.images(require('luminary').ones(3, 20, 400))" -- fitted to the width
      assert.equal((("@"):rep(79) .. "\n"):rep(2), text)
    end)

    it("are half blocks on a terminal of 24-bit color, as wide as that", function()
      local lacking = pty.lacking()
      if lacking then return pending(lacking) end
      local path = temp.write(folder .. "/blocks.lua", [[
        local lm = require "luminary"
        local red, blue = lm.tensor({1, 0, 0}):view(3, 1, 1), lm.tensor({0, 0, 1}):view(3, 1, 1)
        lm.watch.plot.images(lm.cat({red, blue, red}, 2):expand(3, 3, 2))
        lm.watch.plot.images(lm.ones(3, 2, 100))
        print "end"]])
      local function shown(variables)
        local terminal = pty.open(("%s sh -c 'stty cols 41 rows 24; luajit %s'"):format(variables, path))
        local text = terminal:expect "end"
        terminal:finish()
        return (text:gsub("\r", ""))
      end
      assert.equal("\27[38;2;255;0;0;48;2;0;0;255m▀▀\27[0m\n\27[38;2;255;0;0m▀▀\27[0m\n\27[38;2;255;255;255m"
        .. ("▀"):rep(40) .. "\27[0m\n", shown "TERM=xterm COLORTERM=truecolor")
      for _, variables in ipairs {"TERM=xterm COLORTERM=", "TERM=xterm COLORTERM=truecolor NO_COLOR=1"} do
        assert.equal("::::\n....\n::::\n" .. ("@"):rep(40) .. "\n", shown(variables))
      end
    end)

    it("are written as PNG and SVG files, a batch as a grid", function()
      local bytes = lm.arange(24):view(3, 2, 4):to "uint8"
      assert.is_true(bytes:equal(pixels(plot.images, bytes, {}, "png")))
      local batch = lm.rand(5, 1, 6, 6)
      batch[1][1][1][1] = 0 / 0
      local image = pixels(plot.images, batch, {nrow = 3, padding = 1}, "png")
      assert.same({3, 15, 22}, image.shape)
      assert.equal(0, image[1][2][2])
      assert.equal(math.floor(batch[5][1][6][6] * 255 + 0.5), image[1][14][14])
      local svg = drawn(plot.images, bytes, {}, "svg")
      assert.matches('viewBox="0 0 4 2"', svg, 1, true)
      temp.write(folder .. "/text", svg:match "base64,([^\"]+)")
      assert(temp.execute(("base64 -d %s/text >%s/decoded.png"):format(folder, folder)) == 0)
      assert.is_true(bytes:equal(lm.vision.read_image(folder .. "/decoded.png")))
      for n = 1, 3 do -- tests each number of bytes at the end
        assert.matches("^<svg", drawn(plot.images, lm.rand(3, n, 7), {}, "svg"))
      end
      assert.same({4, 5, 5}, pixels(plot.images, lm.rand(4, 5, 5), {}, "png").shape)
    end)

    it("reject other tensors", function()
      for _, row in ipairs {
        {lm.zeros(2, 5, 2, 2), {}, "plot.images: the number of channels must be 1, 3 or 4, got 5"},
        {lm.zeros(3, 0, 2), {}, "plot.images: images must not be empty"},
        {{}, {}, "plot.images: images must not be empty"},
        {lm.zeros(0, 3, 2, 2), {}, "images must not be empty"},
        {lm.zeros(3, 2, 2):long(), {}, "plot.images: images must be uint8 or floating, got int64"},
        {lm.zeros(1, 1, 1, 1, 1), {}, "expected images to have shape [N, C, H, W], [C, H, W], [H, W] or a list"},
        {lm.zeros(3, 2, 2), {path = "x.gif"}, "path must be a name that ends in .png or .svg, got string 'x.gif'"},
      } do
        assert.matches(row[3], message(plot.images, row[1], row[2]), 1, true)
      end
    end)
  end)

  it("says which path cannot be written, and leaves no other file", function()
    for name, what in pairs {curves = {1, 2}, confusion_matrix = lm.ones(2, 2), images = lm.ones(3, 2, 2)} do
      if not (no_gnuplot and name ~= "images") then
        for _, ending in ipairs {".png", ".svg"} do
          local text = message(plot[name], what, {path = folder .. "/absent/x" .. ending})
          local reason = ("cannot write '%s/absent/x%s': No such file or directory"):format(folder, ending)
          assert.matches(reason, text, 1, true)
        end
      end
    end
    if no_gnuplot then return end
    temp.execute("mkdir " .. folder .. "/tmp")
    local script = temp.write(folder .. "/left.lua", ([[
      os.tmpname = function() n = (n or 0) + 1; return %q .. n end
      local plot = require("luminary").watch.plot
      plot.curves {1, 2}
      pcall(plot.curves, {1, 2}, {path = "/nowhere/x.png"})]]):format(folder .. "/tmp/"))
    assert(temp.run(folder, "luajit " .. script))
    assert.same({".", ".."}, lm.paths.dir(folder .. "/tmp"))
  end)

  it("names the package where gnuplot is absent, and its reason where it fails", function()
    local bin = folder .. "/bin"
    temp.execute(("mkdir %s && ln -s \"$(command -v luajit)\" %s/luajit"):format(bin, bin))
    local script = temp.write(folder .. "/absent.lua", "require('luminary').watch.plot.curves {1, 2}\n")
    local function failure()
      local ok, text = temp.run(folder, ("timeout 60 env PATH=%s luajit %s"):format(bin, script))
      assert.is_false(ok)
      return text
    end
    assert.matches("absent.lua:1: plot.curves: cannot find the program gnuplot in PATH; install the package "
      .. "gnuplot-nox (Debian, Ubuntu) or gnuplot", failure(), 1, true)
    temp.write(bin .. "/gnuplot", "#!/bin/sh\necho; echo '\"x\", line 3: no font' >&2; exit 1\n")
    temp.execute("chmod +x " .. bin .. "/gnuplot")
    assert.matches("absent.lua:1: plot.curves: gnuplot failed: no font", failure(), 1, true)
    temp.write(bin .. "/gnuplot", "#!/bin/sh\nkill -9 $$\n")
    assert.matches("absent.lua:1: plot.curves: gnuplot failed: exit code 137", failure(), 1, true)
    temp.write(bin .. "/gnuplot",
      "#!/bin/sh\ni=0\nwhile [ $i -lt 20000 ]; do echo 'warning: a long line'; i=$((i + 1)); done\nexit 1\n")
    assert.matches("absent.lua:1: plot.curves: gnuplot failed: exit code 1", failure(), 1, true) -- soon
  end)

  it("draws on rank 0 alone, unless all ranks shall", function()
    if no_gnuplot then return pending(no_gnuplot) end
    local script = temp.write(folder .. "/ranks.lua", ([[
      local lm = require "luminary"
      lm.dist.init_process_group()
      local function path(kind) return ("%%s/%%s%%d.svg"):format(%q, kind, lm.dist.get_rank()) end
      lm.watch.plot.curves({1, 2}, {path = path "first"})
      lm.watch.plot.images(lm.ones(3, 2, 2), {path = path "first_image"})
      lm.watch.plot.confusion_matrix(lm.ones(2, 2), {path = path "all", all_ranks = true})]]):format(folder))
    local ok, text = temp.run(folder, "luminary run --nproc 2 " .. script)
    assert(ok, text)
    for name, there in pairs {first0 = true, first1 = false, first_image0 = true, first_image1 = false, all0 = true,
      all1 = true} do
      assert.equal(there, temp.exists(("%s/%s.svg"):format(folder, name)) or false, name)
    end
  end)
end)
