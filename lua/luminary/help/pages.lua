--- Reads the sections of lua/luminary/help/pages/*.md and of packages' pages: the full text about public names, in the
--- form of CONTRIBUTING.md ("How to write a section"). A file has the sections of the reference page of its name.
local lists = require "luminary.base.lists"

local pages = {}

--- The names of the reference's pages, in order. A page without sections has no file.
pages.names = {
  "tensors", "creation", "joining", "indexing", "pointwise", "rounding", "math", "trigonometry", "reduction",
  "comparison", "blas", "linalg", "fft", "random", "other-ops", "nn-convolution", "nn-pooling", "nn-padding",
  "nn-activation", "nn-normalization", "nn-recurrent", "nn-transformer", "nn-linear", "nn-loss", "nn-module",
  "nn-containers", "nn-parallel", "nn-utilities", "functional", "functional-activation", "functional-loss", "autograd",
  "amp", "optim", "schedulers", "data", "datasets", "text", "vision", "transforms", "transforms-functional", "models",
  "distributions", "onnx", "metrics", "checkpoint", "watch", "distributed", "multiprocessing", "async", "cuda", "lm",
  "utilities",
}

--- The labels in a section and the parts that they begin, in order.
pages.labels = {
  {"Shape", "shape"}, {"Dtypes", "dtypes"}, {"Devices", "devices"}, {"Returns", "returns"}, {"Errors", "errors"},
}

-- The parts of labels, and the order of all parts.
local part_of, order = {PyTorch = "pytorch"}, {remarks = 1, arguments = 2, example = 8, pytorch = 9}
for i, row in ipairs(pages.labels) do part_of[row[1]], order[row[2]] = row[2], 2 + i end

-- Reads one section's lines into its fields. Calls problem(text, number) for lines that violate the form.
local function read_section(section, lines, problem)
  local current, last = nil, 0 -- the part that a line continues, and the order of the latest
  local function begin_part(part, number)
    if section[part] then problem("a second part of this kind: " .. part, number) end
    if order[part] < last then problem(part .. " must come earlier", number) end
    current, last, section[part] = part, order[part], section[part] or {}
    if part == "example" then section.example_line = number end
  end
  for i, line in ipairs(lines) do
    local number, part = section.line + i, section[current]
    local name, about = line:match "^%- ([%a_][%w_]*): (.*)$"
    local label, text = line:match "^(%u%a+): (.*)$"
    if current == "example" then
      if line == "```" then current = nil else part[#part + 1] = line end
    elseif line == "```lua" then
      begin_part("example", number)
    elseif line == "" then
      current = nil
    elseif name then
      if current ~= "arguments" then begin_part("arguments", number) end
      table.insert(section.arguments, {name = name, about = about})
    elseif part_of[label] then
      begin_part(part_of[label], number)
      section[current] = {text}
    elseif current == "arguments" then
      if line:find "^%- " then problem("an argument must be '- name: text'", number) end
      part[#part].about = part[#part].about .. " " .. line:match "^%s*(.*)$"
    elseif current then
      part[#part] = part[#part] .. " " .. line
    else
      if last <= order.remarks and section.remarks then current = "remarks" else begin_part("remarks", number) end
      table.insert(section.remarks, line)
    end
  end
  if current == "example" then problem("the example has no end", section.example_line) end
end

--- Returns the sections of a page: a list of {names, file, line, arguments = {{name, about}}, example = lines,
--- example_line, remarks, shape, dtypes, devices, returns, errors, pytorch = paragraphs}. Parts that a section lacks
--- are nil. The second value lists violations of the form, each as "FILE:LINE: problem".
function pages.read(path)
  local list, problems, file = {}, {}, require("io").open(path, "r")
  if not file then return list, problems end
  local section, lines, number = nil, nil, 0
  local function problem(text, at) problems[#problems + 1] = ("%s:%d: %s"):format(path, at, text) end
  local function finish_section()
    if section then read_section(section, lines, problem) end
  end
  for line in file:lines() do
    number = number + 1
    local title = line:match "^## (.+)$"
    if title then
      finish_section()
      -- A title is one name or several: "nn.MaxPool1d, nn.MaxPool2d".
      section, lines = {names = lists.parts(title, "[^,%s]+"), file = path, line = number}, {}
      list[#list + 1] = section
    elseif section then
      lines[#lines + 1] = line
    end
  end
  finish_section()
  file:close()
  return list, problems
end

local by_name -- set at first use

--- The pages of packages that add names to the library: a list of {folder, names}, in the order of pages.add.
pages.added = {}

--- Adds the pages FOLDER/NAME.md of a package, after it has added its names to the library: functions and classes to
--- nn, optim and others, methods to classes. Help, its index and search are read again at their next use.
function pages.add(folder, names)
  table.insert(pages.added, {folder = folder, names = names})
  by_name = nil
end

local function read_all(all, folder, names)
  for _, page in ipairs(names) do
    for _, section in ipairs(pages.read(("%s/%s.md"):format(folder, page))) do
      section.page = page
      for _, name in ipairs(section.names) do all[name] = all[name] or section end
    end
  end
end

--- Returns all sections by name.
function pages.all()
  if by_name then return by_name end
  by_name = {}
  read_all(by_name, (package.searchpath("luminary.help.pages", package.path):gsub("%.lua$", "")), pages.names)
  for _, added in ipairs(pages.added) do read_all(by_name, added.folder, added.names) end
  return by_name
end

return pages
