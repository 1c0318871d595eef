#!/usr/bin/python3
"""Prints the shell commands of a Markdown page as a script of bash.

usage: doc_commands.py PAGE

Every fenced block has a tag, and shell commands have the tag `sh`. Comments of HTML above a block are its marks:

    <!-- needs: WHAT -->       the block is not run: it requires this hardware or service
    <!-- tested: WHERE -->     the block is not run: this other test runs it
    <!-- before: COMMANDS -->  these commands make what the page expects of its reader
    <!-- file: NAME -->        the block is not run: it is the content of this file

The script defines no functions. It calls `block PLACE COMMANDS` and `skipped PLACE MARK`. A page without a block to run
gives an empty script. A fault of the page ends with status 1. A link to a heading that does not exist is a fault as well:
`cargo xtask tidy` finds missing pages only.
"""

import os
import re
import shlex
import sys

FENCE = re.compile(r"( *)```(\w*)$")
MARK = re.compile(r"(needs|tested|before|file): *(.*)", re.DOTALL)
OTHER_SHELLS = {"bash", "console", "shell", "zsh"}


class Fault(Exception):
    pass


def blocks(lines):
    """Line number, tag, text and marks of each fenced block."""
    at, marks = 0, {}
    while at < len(lines):
        if lines[at].lstrip().startswith("<!--"):
            comment, at = comment_from(lines, at)
            mark = MARK.fullmatch(comment)
            if mark:
                marks[mark[1]] = mark[2]
            continue
        fence = FENCE.match(lines[at])
        if fence:
            first, indent = at + 1, len(fence[1])
            at = next((n for n in range(first, len(lines)) if lines[n].strip() == "```"), None)
            if at is None:
                raise Fault(f"line {first}: a block without an end")
            yield first, fence[2], "\n".join(line[indent:] for line in lines[first:at]), marks
        elif marks:
            raise Fault(f"line {at + 1}: a mark that is not above a block")
        marks = {}
        at += 1


def comment_from(lines, at):
    """The text of the comment that begins at a line, and the number of the next line."""
    end = next((n for n in range(at, len(lines)) if "-->" in lines[n]), None)
    if end is None:
        raise Fault(f"line {at + 1}: a comment without an end")
    text = "\n".join(lines[at : end + 1]).strip()
    return text.removeprefix("<!--").removesuffix("-->").strip(), end + 1


def anchor(heading):
    """The name of a heading in links, by GitHub's rule."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lstrip("#").strip())
    return "".join(letter for letter in text.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def anchors(page):
    """The anchors of a page, or None if the path is not a page."""
    if not page.endswith(".md") or not os.path.isfile(page):
        return None
    with open(page, encoding="utf-8") as file:
        text = re.sub(r"^ *```.*?^ *```", "", file.read(), flags=re.DOTALL | re.MULTILINE)
    return {anchor(line) for line in text.splitlines() if line.startswith("#")}


def check_links(page, lines):
    for at, line in enumerate(lines):
        for path, name in re.findall(r"\]\(([^):#]*)#([^)]*)\)", line):
            known = anchors(os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page)
            if known is not None and name not in known:
                raise Fault(f"line {at + 1}: {path}#{name} is not a heading")


def script(page, lines):
    files, commands = [], []
    for line, tag, text, marks in blocks(lines):
        place = f"{page}:{line}"
        if not tag or tag in OTHER_SHELLS:
            raise Fault(f"line {line}: the tag of a block of shell commands is sh, others have another")
        if "file" in marks:
            files.append(f"printf '%s\\n' {shlex.quote(text)} >{shlex.quote(marks['file'])}")
        elif tag != "sh":
            if marks:
                raise Fault(f"line {line}: a mark of commands above a block of {tag}")
        elif "needs" in marks or "tested" in marks:
            mark = next(f"{name}: {marks[name]}" for name in ("needs", "tested") if name in marks)
            commands.append(f"skipped {place} {shlex.quote(mark)}")
        else:
            text = "\n".join([marks.get("before", ":"), text])
            commands.append(f"block {place} {shlex.quote(text)}")
    return "\n".join(files + commands)


def main():
    page = sys.argv[1]
    try:
        with open(page, encoding="utf-8") as file:
            lines = file.read().splitlines()
        check_links(page, lines)
        print(script(page, lines))
    except Fault as fault:
        sys.exit(f"{page}: {fault}")


if __name__ == "__main__":
    main()
