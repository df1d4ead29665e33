"""Hooks of the site (mkdocs.yml names this file).

- `reference/` in the contents stands for all pages of that folder, in the order of its README.md.
- A link from a page to a file of the repository outside docs/ (a source, an example, CONTRIBUTING.md) leads to a page
  of the site that shows the file. It is below files/ and not in the contents.
- Markdown is read as GitHub reads it: a list may follow a paragraph without a blank line, two spaces nest, and
  "#name" is no heading.
- The search prefers pages that say how to do something to the reference.
"""
import os
import posixpath
import re

from markdown.extensions import Extension
from mkdocs.structure.files import File, InclusionLevel

LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[#)\s])")
FENCED = re.compile(r"(^ *```.*?^ *```+ *$)", re.M | re.S)
ITEM = re.compile(r" *([-*]|\d+\.) ")
GUIDES = ("start/", "tutorial/", "howto/", "from_", "status/")
LANGUAGES = {".lua": "lua", ".py": "python", ".c": "c", ".h": "c", ".cc": "cpp", ".cu": "cpp", ".yml": "yaml"}

source_of = {}  # a page of the site -> the file of the repository that it shows


class TwoSpaces(Extension):
    def extendMarkdown(self, md):
        md.tab_length = 2


def contents_of(folder, path):
    """The pages of a folder of docs/: README.md, then those that it links to, grouped by its headings, then others."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".md"))
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
        lines = file.read().split("\n")
    contents = top = [path + "README.md"]
    names.remove("README.md")
    for line in lines:
        if line.startswith("## "):
            contents = []
            top.append({line[3:]: contents})
        for name in LINK.findall(line):
            if name in names:
                names.remove(name)
                contents.append(path + name)
    return [entry for entry in top if isinstance(entry, str) or any(entry.values())] + [path + name for name in names]


def on_config(config):
    for entry in config.nav:
        for title, path in entry.items():
            if isinstance(path, str) and path.endswith("/"):
                entry[title] = contents_of(os.path.join(config.docs_dir, path), path)
    config.markdown_extensions.append(TwoSpaces())
    return config


def page_of(path):
    """The page that shows a file of the repository, both as paths."""
    if path.startswith("docs/"):
        return path[len("docs/"):]
    return "files/" + (path if path.endswith(".md") else path + ".md")


def resolve(source, target):
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def content_of(path):
    """The Markdown that shows a file or folder of the repository."""
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if os.path.isfile(os.path.join(path, name)))
        base = posixpath.basename(path)
        return "# {}\n\n{}\n".format(path, "\n".join("- [{0}]({1}/{0})".format(name, base) for name in names))
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(os.path.splitext(path)[1], "sh" if text.startswith("#!/bin/sh") else "text")
    if text.startswith("#!/usr/bin/env luajit"):
        language = "lua"
    return "---\nsearch:\n  exclude: true\n---\n# {}\n\n``````{}\n{}\n``````\n".format(path, language, text.rstrip())


def outside_fences(text, change):
    return "".join(part if i % 2 else change(part) for i, part in enumerate(FENCED.split(text)))


def on_files(files, config):
    open_pages = [("docs/" + file.src_uri, file.content_string) for file in files.documentation_pages()]
    while open_pages:
        source, text = open_pages.pop()
        for target in LINK.findall(FENCED.sub("", text)):
            path = resolve(source, target)
            page = page_of(path)
            if path.startswith(("docs/", "../")) or page in source_of or not os.path.exists(path):
                continue
            source_of[page] = path
            content = content_of(path)
            files.append(File.generated(config, page, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
            open_pages.append((path, content))
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    source = source_of.get(here, "docs/" + here)
    if here.startswith(GUIDES):
        page.meta["search"] = {"boost": 2}

    def change(text):
        def relative(match):
            path = resolve(source, match.group(1))
            if path.startswith("docs/") and here not in source_of or not os.path.exists(path):
                return match.group(1)
            return posixpath.relpath(page_of(path), posixpath.dirname(here) or ".")

        lines = []
        for line in re.sub(r"^( *)(?=#+[^#\s])", r"\1\\", LINK.sub(relative, text), flags=re.M).split("\n"):
            if ITEM.match(line) and lines and re.match(r"[^\s#>|<-]", lines[-1]) and not ITEM.match(lines[-1]):
                lines.append("")
            lines.append(line)
        return "\n".join(lines)

    return outside_fences(markdown, change)
