--- Reads Markdown pages: fenced blocks with the directive before them, headings' anchors, and links.
local markdown = {}

--- Returns the anchor of a heading, as GitHub and the site make it.
function markdown.anchor(title)
  local text = title:gsub("%[([^%]]*)%]%b()", "%1"):gsub("[`*]", ""):lower()
  return (text:gsub("[^%w%s_-]", ""):gsub("%s", "-"))
end

--- Parses a page. Returns a table of
---   lines     the page's lines
---   blocks    each {language, first, last, code, directive}: `first` and `last` are the lines of its two fences;
---             `directive` is the text of `<!-- run: … -->` on the line before, nil without one
---   anchors   anchor -> the number of headings that have it
---   links     each {target, line}
function markdown.parse(text)
  local page = {lines = {}, blocks = {}, anchors = {}, links = {}}
  local block, fence, directive
  for line in (text:gsub("\n$", "") .. "\n"):gmatch "(.-)\n" do
    local n = #page.lines + 1
    page.lines[n] = line
    local indent, ticks, language = line:match "^(%s*)(```+)([%w_]*)"
    if block then
      if ticks == fence and language == "" then
        block.last, block.code = n, table.concat(block.code, "\n")
        block = nil
      else
        block.code[#block.code + 1] = line:sub(#block.indent + 1)
      end
    elseif ticks then
      fence = ticks
      block = {language = language, first = n, code = {}, directive = directive, indent = indent}
      page.blocks[#page.blocks + 1], directive = block, nil
    else
      local title = line:match "^#+%s+(.-)%s*$"
      if title then
        local anchor = markdown.anchor(title)
        page.anchors[anchor] = (page.anchors[anchor] or 0) + 1
      end
      for anchor in line:gmatch '<a%s+%a+="([^"]+)"' do page.anchors[anchor] = 1 end
      for target in line:gsub("``.-``", ""):gsub("`[^`]*`", ""):gmatch "%]%(([^%s)]+)[^)]*%)" do
        page.links[#page.links + 1] = {target = target, line = n}
      end
      directive = line:match "^%s*<!%-%- run: (.-) %-%->%s*$" or (line:match "^%s*$" and directive)
    end
  end
  assert(not block, block and ("the block of line %d has no end"):format(block.first))
  return page
end

return markdown
