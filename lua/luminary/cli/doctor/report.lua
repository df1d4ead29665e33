--- Writes the doctor's report, as text for people and as JSON.
local json_encode = require "luminary.base.json_encode"
local lists = require "luminary.base.lists"

local report = {}

local RANK = {problem = 1, warning = 2, note = 3, ok = 4}
local WIDTH = 100 -- columns
report.rank = RANK

-- Patterns of UTF-8 sequences.
local SEQUENCES = {"^[\194-\223][\128-\191]", "^\224[\160-\191][\128-\191]",
  "^[\225-\236\238\239][\128-\191][\128-\191]",
  "^\237[\128-\159][\128-\191]", "^\240[\144-\191][\128-\191][\128-\191]",
    "^[\241-\243][\128-\191][\128-\191][\128-\191]",
  "^\244[\128-\143][\128-\191][\128-\191]"}

--- Returns a text with "~" for the home folder, since reports are passed on, and a question mark for each control
--- character and byte that is not UTF-8: the output of commands must not move the terminal's cursor.
function report.clean(text)
  text = text:gsub(((os.getenv "HOME" or ""):match "^/.+" or "~"):gsub("%p", "%%%0") .. "%f[^%w]", "~")
  return (text:gsub("[%z\1-\8\11-\31\127]", "?"):gsub("[\128-\255]+", function(run)
    local out, at = {}, 1
    while at <= #run do
      local piece
      for _, pattern in ipairs(SEQUENCES) do piece = piece or run:sub(at, at + 3):match(pattern) end
      out[#out + 1] = piece or "?"
      at = at + #(piece or "?")
    end
    return table.concat(out)
  end))
end

local function count(findings)
  local n = {problem = 0, warning = 0, note = 0, ok = 0}
  for _, one in ipairs(findings) do n[one.severity] = n[one.severity] + 1 end
  return n
end
report.count = count

--- Returns one JSON object: version, host, kernel, seconds, exit_code, counts by severity, and findings, one a line.
function report.json(about, findings)
  local texts = lists.map(findings, json_encode)
  local head = json_encode {
    version = about.version, host = about.host, kernel = about.kernel, exit_code = about.code,
    seconds = math.floor(about.seconds * 100) / 100, counts = count(findings),
  }
  return ('%s,"findings":[\n%s\n]}\n'):format(head:sub(1, -2), table.concat(texts, ",\n"))
end

-- Appends a labeled paragraph, wrapped between words; line ends in the text stay.
local function paragraph(label, text, lines)
  local room = WIDTH - #label
  for part in (text .. "\n"):gmatch("([^\n]*)\n") do
    local line = ""
    local function flush()
      lines[#lines + 1] = label .. line
      label, line = (" "):rep(#label), ""
    end
    if #part <= room then
      line = part
    else
      for word in part:gmatch("%S+") do
        if line ~= "" and #line + 1 + #word > room then flush() end
        line = line == "" and word or line .. " " .. word
      end
    end
    flush()
  end
end

local COLORS = {problem = 31, warning = 33, note = 36, ok = 32}

local function heading(one, colored)
  local word = ("%-7s"):format(one.severity)
  if colored then word = ("\27[%dm%s\27[0m"):format(COLORS[one.severity], word) end
  return ("  %s  %s  [%s]"):format(word, one.title, one.id)
end

local function plural(n, word) return ("%d %s%s"):format(n, word, n == 1 and "" or "s") end

--- Returns the report on findings: subjects {name, title} with problems first, and in each subject the worst first.
function report.text(about, subjects, findings, verbose, colored)
  local lines, groups = {("luminary %s on %s, %s"):format(about.version, about.host, about.kernel)}, {}
  for place, subject in ipairs(subjects) do
    local group = {title = subject.title, place = place, worst = 9}
    for i, one in ipairs(findings) do
      if one.subject == subject.name and (verbose or one.severity ~= "ok") then
        group[#group + 1] = {one = one, place = i}
        group.worst = math.min(group.worst, RANK[one.severity])
      end
    end
    table.sort(group, function(a, b)
      local x, y = RANK[a.one.severity], RANK[b.one.severity]
      return x < y or x == y and a.place < b.place
    end)
    if #group > 0 then groups[#groups + 1] = group end
  end
  table.sort(groups, function(a, b) return a.worst < b.worst or a.worst == b.worst and a.place < b.place end)
  for _, group in ipairs(groups) do
    lines[#lines + 1] = ""
    lines[#lines + 1] = group.title
    for _, item in ipairs(group) do
      lines[#lines + 1] = heading(item.one, colored)
      if item.one.reason ~= "" then paragraph("           seen: ", item.one.reason, lines) end
      if item.one.remedy ~= "" then paragraph("           do:   ", item.one.remedy, lines) end
    end
  end
  local n = count(findings)
  lines[#lines + 1] = ""
  lines[#lines + 1] = ("%s, %s, %s; %d checks found nothing wrong%s"):format(plural(n.problem, "problem"),
    plural(n.warning, "warning"), plural(n.note, "note"), n.ok, verbose and "" or " (--verbose shows them)")
  return table.concat(lines, "\n") .. "\n"
end

return report
