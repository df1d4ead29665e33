--- Search in all public names and their first sentences.
local entry = require "luminary.help.entry"
local help = require "luminary.help"
local index = require "luminary.help.index"
local options = require "luminary.base.options"
local overview = require "luminary.help.overview"

local search = {}

local SHOWN, COLUMN = 40, 30 -- the entries listed with their sentences, and the column of these

-- The order of results: classes and libraries, functions, methods.
local function rank_of(each)
  if type(each.value) == "table" then return 1 end
  return each.path:find ":" and 3 or 2
end

local function is_listed(each)
  local of_class = each.path:find ":" and help.usual[each.name]
  return not of_class and not index.is_hidden(each) and help.of(each) and entry.main(each) == each
end

-- {each, rank, name, path, sentence} of all names that are listed, texts in lower case; and the entries they are of.
local rows, rows_of

local function all_rows()
  local entries, list = index.entries(), {}
  if rows_of == entries then return rows end
  for _, each in ipairs(entries) do
    if is_listed(each) then
      local path = each.path:match ":(.*)$" or each.path -- the class before a method's name has its own row
      list[#list + 1] = {
        each = each, rank = rank_of(each), name = each.name:lower(), path = path:lower(),
        sentence = entry.parts(each).summary:lower(),
      }
    end
  end
  rows, rows_of = list, entries
  return list
end

-- Whether a word of a text, in lower case, begins so.
local function has_word(text, word) return text:find("%f[%w]" .. word:gsub("%p", "%%%0")) ~= nil end

local function has_all(text, words)
  for _, word in ipairs(words) do
    if not has_word(text, word) then return false end
  end
  return true
end

-- The tier of a match: 0 if a word is the name, 1 if all are in the path, 2 if some are in the first sentence; else
-- nil.
local function tier_of(row, words)
  local tier = 0
  for _, word in ipairs(words) do
    if row.path:find(word, 1, true) or row.name == word then -- the name of F is functional
      tier = math.max(tier, row.name == word and 0 or 1)
    elseif has_word(row.sentence, word) then
      tier = 2
    else
      return nil
    end
  end
  return tier
end

local function words_of(query)
  local words = {}
  for word in query:lower():gmatch "[%w_%.:]+" do words[#words + 1] = word end
  return words
end

--- Returns the entries (index.entries()) with all words of the query in their path or first sentence, case ignored:
--- exact names first, then names with the words, then sentences; classes before functions before methods.
function search.find(query)
  local words, found = words_of(query), {}
  if #words == 0 then return found end
  for _, row in ipairs(all_rows()) do
    local tier = tier_of(row, words)
    if tier then found[#found + 1] = {tier = tier, rank = row.rank, each = row.each} end
  end
  table.sort(found, function(a, b)
    if a.tier ~= b.tier then return a.tier < b.tier end
    if a.rank ~= b.rank then return a.rank < b.rank end
    if #a.each.path ~= #b.each.path and a.tier < 2 then return #a.each.path < #b.each.path end
    return a.each.path < b.each.path
  end)
  local list = {}
  for i, one in ipairs(found) do list[i] = one.each end
  return list
end

--- Returns the entries with all words of the query anywhere in their help, in alphabetical order.
function search.mentions(query)
  local words, list = words_of(query), {}
  for _, row in ipairs(#words > 0 and all_rows() or {}) do
    if has_all((entry.text(row.each) or ""):lower(), words) then list[#list + 1] = row.each end
  end
  table.sort(list, function(a, b) return a.path < b.path end)
  return list
end

--- Returns the headings of docs/ with all words of the query, each as "docs/PAGE: HEADING"; a page's title counts for
--- all of its headings. Words match from their start, case and plural ignored.
function search.headings(query)
  local words, list = words_of(query), {}
  for i, word in ipairs(words) do words[i] = word:gsub("(...)s$", "%1") end
  for _, page in ipairs(#words > 0 and require "luminary.help.headings" or {}) do
    local title = page[2] or ""
    if has_all(title:lower(), words) then
      list[#list + 1] = ("docs/%s: %s"):format(page[1], title)
    else
      for i = 3, #page do
        local heading = page[i]:lower()
        if has_all(heading, words) or #words > 1 and has_all(title:lower() .. " " .. heading, words) then
          list[#list + 1] = ("docs/%s: %s"):format(page[1], page[i])
        end
      end
    end
  end
  return list
end

local function line_of(each)
  local parts = entry.parts(each)
  local name = each.path .. (" "):rep(COLUMN - #each.path - 2)
  local text = ("  %s  %s"):format(name, parts.summary)
  if #text <= overview.WIDTH then return text end
  return text:sub(1, overview.WIDTH - 1):gsub("[%s%p]*%S*$", "") .. " …"
end

--- Returns the entries of a list as text, a line each with its first sentence; the rest of a long list as names.
function search.lines(list)
  local lines, rest = {}, {}
  for i, each in ipairs(list) do
    if i <= SHOWN then lines[i] = line_of(each) else rest[#rest + 1] = each.path end
  end
  if #rest > 0 then lines[#lines + 1] = "and:\n" .. overview.columns(rest) end
  return table.concat(lines, "\n")
end

--- Returns the line "See also: …" with other matches of a query, or nil. `but`: the set of entries already shown.
function search.see_also(query, but)
  local names, shown = {}, {}
  for each in pairs(but) do shown[entry.main(each)] = true end
  for _, each in ipairs(search.find(query)) do
    if not shown[each] then names[#names + 1] = each.path end
  end
  return #names > 0 and "\nSee also: " .. table.concat(names, ", ") or nil
end

return options.exact_all(search)
