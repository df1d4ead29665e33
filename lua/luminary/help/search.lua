--- Searches all public names and their first sentences, and the pages of docs/.
local read_file = require "luminary.base.read_file"
local entry = require "luminary.help.entry"
local help = require "luminary.help"
local index = require "luminary.help.index"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local overview = require "luminary.help.overview"
local paths = require "luminary.paths"

local search = {}

local SHOWN, COLUMN = 40, 30 -- entries listed with sentences; column of sentences

-- Returns the rank of a result: classes and libraries, functions, methods.
local function rank_of(each)
  if type(each.value) == "table" then return 1 end
  return each.path:find ":" and 3 or 2
end

local function is_listed(each)
  local of_class = each.path:find ":" and help.usual[each.name]
  return not of_class and not index.is_hidden(each) and help.of(each) and entry.main(each) == each
end

-- ---- queries

-- Endings that inflection changes; longer ones first.
local ENDINGS = {"ations", "ation", "ions", "ings", "ion", "ing", "ers", "ies", "ed", "es", "er", "s", "e", "y"}

-- Returns the start shared by the forms of a word: "accumul" for accumulation, "stop" for stopping.
local function stem(word)
  if word:find "^distributions?$" then return "distribution" end -- "distributed" is about something else
  for _, ending in ipairs(ENDINGS) do
    local rest = word:sub(-#ending) == ending and word:sub(1, -#ending - 1)
    if rest and #rest >= (ending == "s" and 3 or 4) and not word:find "ss$" then
      return (rest:gsub("([^aeiousl%d])%1$", "%1"))
    end
  end
  return word
end

-- Returns the pattern of a word or phrase in lower case, whose words begin as the text's do.
local function pattern_of(phrase)
  local prefixes = lists.map(lists.parts(phrase, "[%w_]+"), function(word)
    local prefix = stem(word):gsub("%p", "%%%0")
    return #prefix < 3 and prefix .. "%f[%W]" or prefix -- "rl" begins too many words
  end)
  return "%f[%w]" .. table.concat(prefixes, "%w*[^%w]+")
end

local STOP = lists.set [[a an the my i me do does can could how what which when where why is are be to of in on for with
  from and or use using used make get set up it its this that into at by as one not don t isn want need add no such]]

local phrases -- synonyms, longest first: {pattern in a query, pattern in a text, phrase, its group}

local function all_phrases()
  if phrases then return phrases end
  phrases = {}
  for line in require("luminary.help.synonyms"):gmatch "[^\n]+" do
    local group = {}
    for phrase in line:gmatch "[^,]+" do
      phrase = phrase:match "^%s*(.-)%s*$"
      group[#group + 1] = {"%f[%w_]" .. phrase:gsub("%p", "%%%0") .. "s?%f[^%w_]", pattern_of(phrase), phrase, group}
      phrases[#phrases + 1] = group[#group]
    end
  end
  table.sort(phrases, function(a, b)
    if #a[3] ~= #b[3] then return #a[3] > #b[3] end
    return a[3] < b[3]
  end)
  return phrases
end

-- Returns the terms of a query, each a list of patterns of which one must match; the first is the term's own. Stop
-- words are ignored, unless there are no others.
local function terms_of(query)
  local terms, rest, words = {}, " " .. query:lower() .. " ", {}
  for _, one in ipairs(all_phrases()) do
    local without, n = rest:gsub(one[1], " ")
    if n > 0 then
      rest = without
      local term = {one[2], word = one[3]}
      for _, other in ipairs(one[4]) do if other ~= one then term[#term + 1] = other[2] end end
      terms[#terms + 1] = term
    end
  end
  for word in rest:gmatch "[%w_]+" do
    words[#words + 1] = word
    if not STOP[word] then terms[#terms + 1] = {pattern_of(word), word = word} end
  end
  for _, word in ipairs(#terms == 0 and words or {}) do terms[#terms + 1] = {pattern_of(word), word = word} end
  return terms
end

-- Scores a term in a text in lower case: 1 for the term itself, 0.8 for a synonym; nil without a match.
local function strength(text, term)
  for i, pattern in ipairs(term) do
    if text:find(pattern) then return i == 1 and 1 or 0.8 end
  end
end

-- ---- names

-- Returns the words of a path: "nn max pool2d" for nn.MaxPool2d.
local function words_in(path)
  return (path:gsub("(%l)(%u)", "%1 %2"):gsub("(%u)(%u%l)", "%1 %2"):gsub("[%p]", " "):lower())
end

-- Rows {each, rank, name, path, words, sentence} of all listed names, with texts in lower case; and the list of entries
-- for which they were made.
local rows, rows_of

local function all_rows()
  local entries, list = index.entries(), {}
  if rows_of == entries then return rows end
  for _, each in ipairs(entries) do
    if is_listed(each) then
      local path = each.path:match ":(.*)$" or each.path -- the class has its own row
      list[#list + 1] = {
        each = each, rank = rank_of(each), name = each.name:lower(), path = path:lower(), words = words_in(path),
        sentence = entry.parts(each).summary:lower(),
      }
    end
  end
  rows, rows_of = list, entries
  return list
end

-- Returns the tier of a match: 0 if a word is the name, 1 if all are words of the path, 1.5 for a synonym or an acronym
-- (ASGD), 2 if some are in the first sentence, 3 if some, of four letters or more, are a part of a word; else nil.
local function tier_of(row, terms)
  local tier = 0
  for _, term in ipairs(terms) do
    local of_path = strength(row.words, term)
    if row.name == term.word then -- F's name is functional
      tier = math.max(tier, 0)
    elseif of_path == 1 or row.path:find("%f[%w]" .. term.word:gsub("%p", "%%%0")) then
      tier = math.max(tier, 1)
    elseif of_path or #term.word > 2 and row.each.path:find(term.word:upper(), 1, true) then
      tier = math.max(tier, 1.5)
    elseif strength(row.sentence, term) then
      tier = math.max(tier, 2)
    elseif #term.word > 3 and row.path:find(term.word, 1, true) then
      tier = 3
    else
      return nil
    end
  end
  return tier
end

--- Returns the entries (index.entries()) with all words of the query in their path or first sentence, ignoring case,
--- inflection and synonyms: exact names first, then names with the words, then sentences; classes before functions
--- before methods; then names that contain a word, up to the tier `most`. Also returns the tier of the first.
function search.find(query, most)
  local terms, found = terms_of(query), {}
  if #terms == 0 then return found end
  for _, row in ipairs(all_rows()) do
    local tier = tier_of(row, terms)
    if tier and tier <= (most or 3) then found[#found + 1] = {tier = tier, rank = row.rank, each = row.each} end
  end
  table.sort(found, function(a, b)
    if a.tier ~= b.tier then return a.tier < b.tier end
    if a.rank ~= b.rank then return a.rank < b.rank end
    if #a.each.path ~= #b.each.path and a.tier < 2 then return #a.each.path < #b.each.path end
    return a.each.path < b.each.path
  end)
  return lists.map(found, function(one) return one.each end), found[1] and found[1].tier
end

--- Returns the entries with all words of the query anywhere in their help, in alphabetical order.
function search.mentions(query)
  local terms, list = terms_of(query), {}
  for _, row in ipairs(#terms > 0 and all_rows() or {}) do
    local text = (entry.text(row.each) or ""):lower()
    if lists.every(terms, function(term) return strength(text, term) end) then list[#list + 1] = row.each end
  end
  table.sort(list, function(a, b) return a.path < b.path end)
  return list
end

-- ---- pages

-- Returns the folder of docs/, next to an installed library or in a checkout; nil if there is none.
local function docs_folder()
  local here = package.searchpath("luminary.help.search", package.path):gsub("help/search%.lua$", "")
  for _, folder in ipairs {here .. "docs", here .. "../../docs"} do
    if paths.filep(folder .. "/index.md") then return folder end
  end
end

--- Returns the text of a page of docs/, such as "docs/howto/images.md", or the sections of a page of the reference; nil
--- if there is none.
function search.page(path)
  local folder, name = docs_folder(), path:match "^docs/([%w_/%-]+%.md)$"
  if name and name:find "^reference/" then
    folder, name = package.searchpath("luminary.help", package.path):gsub("init%.lua$", "pages"), name:match "[^/]+$"
  end
  if not folder or not name or not paths.filep(folder .. "/" .. name) then return nil end
  return read_file(folder .. "/" .. name)
end

local sections -- sections of all pages: {page, title, heading, text} in lower case, and `shown`

-- Pages whose tables link to other pages: a row is a section of the page it links to. add_sections adds a page's
-- sections.
local TABLES = {["index.md"] = true, ["topics.md"] = true}

local function add_sections(page)
  local title, current, code = "", nil, false
  local function begin(of, heading)
    current = {page = of, title = title, heading = heading:lower(), shown = heading, text = ""}
    sections[#sections + 1] = current
  end
  for line in (search.page("docs/" .. page) or ""):gmatch "[^\n]*" do
    if line:find "^```" then code = not code end
    local level, heading = line:match "^(##?) (.*)$"
    local row, to = line:match "^| ([^|]+) | %[[^%]]*%]%(([%w_/%-]+%.md)"
    if heading and not code then
      heading = heading:gsub("`", "")
      if level == "#" then title = heading:lower() end
      if not TABLES[page] then begin(page, heading) end
    elseif row and TABLES[page] then
      begin(to, row)
    elseif current and not TABLES[page] then
      current.text = current.text .. line:lower() .. "\n"
    end
  end
end

local function all_sections()
  if sections then return sections end
  sections = {}
  local folder = docs_folder()
  for _, of in ipairs(folder and {"", "start/", "tutorial/", "howto/", "explain/", "status/"} or {}) do
    for _, name in ipairs(paths.dir(folder .. "/" .. of) or {}) do
      if name:find "%.md$" then add_sections(of .. name) end
    end
  end
  return sections
end

local WEIGHTS = {status = 0.5, explain = 0.8} -- weights of folders of pages that fewer readers need

-- Scores a section: a heading counts more than the page's title, and that more than text; nil if it lacks more than
-- `may_lack` terms.
local function fit(section, terms, whole, may_lack)
  local score, named, lacks = 0, true, 0
  for _, term in ipairs(terms) do
    local of_heading, of_title = strength(section.heading, term), strength(section.title, term)
    local of_text, _, times = strength(section.text, term), section.text:gsub(term[1], "%0", 6)
    if not (of_heading or of_title or of_text) then lacks = lacks + 1 end
    if lacks > may_lack then return nil end
    named = named and (of_heading or of_title) ~= nil
    score = score + math.max(4 * (of_heading or 0), 2.5 * (of_title or 0))
      + (of_text or 0) * (1 + times / 4)
  end
  if section.heading:find(whole) then score = score + 3 elseif section.text:find(whole) then score = score + 2 end
  return (score - #section.text / 1e4) * (WEIGHTS[section.page:match "^%a+"] or 1) * 0.7 ^ lacks, named, lacks
end

local PAGES = 5

--- Returns up to five sections of docs/ with all or most words of the query, the best first, each as "docs/PAGE:
--- HEADING"; true if the first one's heading or title has all words; and true if it lacks some.
function search.headings(query)
  local terms, found, list, seen = terms_of(query), {}, {}, {}
  local whole = pattern_of(query:lower())
  local most = math.floor(#terms / 3) -- words that a section may lack: a page about the others is often what is meant
  for _, section in ipairs(#terms > 0 and all_sections() or {}) do
    local score, named, lacking = fit(section, terms, whole, most)
    if score then
      found[#found + 1] = {score = score, named = named, lacks = lacking > 0, section = section, i = #found}
    end
  end
  table.sort(found, function(a, b)
    if a.score ~= b.score then return a.score > b.score end
    return a.i < b.i
  end)
  for _, one in ipairs(found) do
    local of = one.section
    local line = ("docs/%s: %s"):format(of.page, of.shown)
    seen[of.page] = (seen[of.page] or 0) + 1
    if #list < PAGES and seen[of.page] <= 2 then list[#list + 1] = line end
  end
  return list, found[1] and found[1].named or false, found[1] and found[1].lacks or false
end

local function line_of(each)
  local parts = entry.parts(each)
  local name = each.path .. (" "):rep(COLUMN - #each.path - 2)
  local text = ("  %s  %s"):format(name, parts.summary)
  if #text <= overview.WIDTH then return text end
  return text:sub(1, overview.WIDTH - 1):gsub("[%s%p]*%S*$", "") .. " …"
end

--- Returns the entries of a list as text, one a line with its first sentence; the rest of a long list as names.
function search.lines(list)
  local lines, rest = {}, {}
  for i, each in ipairs(list) do
    if i <= SHOWN then lines[i] = line_of(each) else rest[#rest + 1] = each.path end
  end
  if #rest > 0 then lines[#lines + 1] = "and:\n" .. overview.columns(rest) end
  return table.concat(lines, "\n")
end

--- Returns the line "See also: …" with other names that have a query's words, or nil. `but`: the set of entries already
--- shown.
function search.see_also(query, but)
  local names, shown = {}, {}
  for each in pairs(but) do shown[entry.main(each)] = true end
  for _, each in ipairs(search.find(query, 1.5)) do
    if not shown[each] then names[#names + 1] = each.path end
  end
  return #names > 0 and "\nSee also: " .. table.concat(names, ", ") or nil
end

return options.exact_all(search)
