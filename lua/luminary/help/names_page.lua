--- names_page(only): Reads help/pytorch_names.md. Returns tables from names to their name here, a sentence (with a
--- blank) or false, for a name that is absent, by library; with `only`, the table of that section alone, the page's
--- first one. Of two rows of a name in one library the first counts.
local PAGE = package.searchpath("luminary.help.names_page", package.path):gsub("names_page%.lua$", "pytorch_names.md")

return function(only)
  local libraries, sections, row = {}, {}, nil
  local function finish()
    local names, words = (row or ""):match "^%- (`.-`): (.*)$"
    for name in (names or ""):gmatch "`([^`]+)`" do
      for _, section in ipairs(sections) do
        if section[name] == nil then section[name] = words ~= "absent" and words end
      end
    end
    row = nil
  end
  for line in require("luminary.base.read_file")(PAGE):gmatch "([^\n]*)\n" do
    local heading = line:match "^## (.*)$"
    if row and line:find "^  " then
      row = row .. line:sub(2)
    else
      finish()
      row = line
    end
    if heading and only and libraries[only] then break end
    if heading then sections = {} end
    for library in (heading or ""):gmatch "[^, ]+" do
      libraries[library] = libraries[library] or {}
      sections[#sections + 1] = libraries[library]
    end
  end
  finish()
  return only and libraries[only] or libraries
end
