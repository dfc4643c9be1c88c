#!/usr/bin/env python3
"""Compares the public API with the list in tests/public_api.txt.

Reads what `cargo doc --no-deps --all-features` has written: each item with its declaration, its methods, and the traits
that it implements. After a change of the API, `python3 tests/public_api.py write` writes the list anew; read the
difference, and name what breaks users in CHANGELOG.md.

`python3 tests/public_api.py since COMMIT` prints what the list has, and that of the commit has not, as a table in Markdown.
It needs no documentation.
"""

import difflib
import html
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "public_api.txt"
DOCS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "doc" / "tower_distributed"
# Of the traits that the compiler implements by itself. The others are not stable.
AUTO = re.compile(r"\b(Send|Sync|Unpin) for\b")


def text(markup):
    """The text of a piece of a page, without the buttons of rustdoc."""
    markup = re.sub(r"<summary.*?</summary>", "", markup, flags=re.S)
    markup = re.sub(r'<a href="#" class="tooltip".*?</a>', "", markup, flags=re.S)
    return html.unescape(re.sub(r"<[^>]+>", "", markup)).replace("\u00a0", " ")


def line(markup):
    """The same on one line."""
    words = re.sub(r"\s+", " ", text(markup)).strip()
    words = re.sub(r"(?<=\S)where ", " where ", words.replace(" where ", "where "))
    return words.replace("( ", "(").replace(", )", ")").rstrip(",")


def section(page, start, *ends):
    """What a page has between two ids; nothing if it lacks the first."""
    at = page.find(f'id="{start}"')
    if at < 0:
        return ""
    stops = [stop for stop in (page.find(f'id="{end}"', at) for end in ends) if stop >= 0]
    return page[at : min(stops, default=len(page))]


def headers(part, tag):
    return [line(found) for found in re.findall(rf'<{tag} class="code-header">(.*?)</{tag}>', part, re.S)]


def item(path):
    page = (DOCS / path).read_text(encoding="utf-8")
    declared = re.search(r'<pre class="rust item-decl"><code>(.*?)</code></pre>', page, re.S)
    if declared is None:
        sys.exit(f"{path} has no declaration: has rustdoc changed its pages? Adapt tests/public_api.py")
    declaration = text(declared.group(1)).replace("]pub ", "]\npub ").replace(" ;", ";")
    declaration = [words.rstrip() for words in declaration.splitlines()]
    yield from (words for words in declaration if words.strip() and not words.strip().startswith("//"))
    own = page[: page.find('id="trait-implementations"')] if 'id="trait-implementations"' in page else page
    own = re.split(r'id="(?:deref-methods|synthetic-implementations|implementors|foreign-impls)', own)[0]
    for kind in ("associatedconstant", "method"):
        found = re.findall(rf'<section id="{kind}\.[^"]*" class="{kind}">.*?<h4[^>]*>(.*?)</h4>', own, re.S)
        yield from sorted("    " + line(one) for one in found)
    traits = section(page, "trait-implementations-list", "synthetic-implementations", "blanket-implementations")
    yield from sorted("    " + one for one in headers(traits, "h3") if "StructuralPartialEq" not in one)
    auto = section(page, "synthetic-implementations-list", "blanket-implementations")
    yield from sorted("    " + one for one in headers(auto, "h3") if AUTO.search(one))
    for ours in ("foreign-impls", "implementors-list"):
        yield from sorted("    " + one for one in headers(section(page, ours, "implementors", "auto-implementors"), "h3"))


def listing():
    if not (DOCS / "all.html").exists():
        sys.exit(f"{DOCS} is missing: run cargo doc --no-deps --all-features")
    items = re.findall(r'<li><a href="([^"]+)">', (DOCS / "all.html").read_text(encoding="utf-8"))
    if not items:
        sys.exit("rustdoc has changed its list of all items: adapt tests/public_api.py")
    lines = []
    for index in sorted(DOCS.rglob("index.html")):
        for name in re.findall(r'id="reexport\.[^"]*"[^>]*>(.*?)</(?:dt|li|div)>', index.read_text(encoding="utf-8"), re.S):
            lines += [line(name), ""]
    places = {}
    # Items of the root first: their modules show many of them once more.
    for path in sorted(items, key=lambda path: (path.count("/"), path)):
        *modules, file = path.split("/")
        kind, name = file.split(".")[:2]
        place, shown = "::".join(["tower_distributed", *modules, name]), tuple(item(path))
        first = places.setdefault((kind, name, shown), place)
        lines += [f"{kind} {place}", *(shown if first == place else [f"    = {first}"]), ""]
    return lines


def parts(listed):
    """A list as a map: of an item, and of each of its members, to its lines."""
    found = {}
    for block in "\n".join(listed).split("\n\n"):
        first, *lines = block.strip("\n").split("\n")
        found[first, ""] = []
        for words in lines:
            # Fields and variants have the same indent as methods. The arguments of a function are no members.
            member = r"    (?:pub )?(?:const |async )*(?:fn (\w+)|type (\w+)|(impl\b.*)|(\w+)\b)"
            name = None if first.startswith("fn ") else re.match(member, words)
            if name:
                key = next(group for group in name.groups() if group)
                found.setdefault((first, key), []).append(words.strip().rstrip(","))
            else:
                found[first, ""].append(words.strip())
    return found


def since(commit):
    """The difference to the list of another commit, as rows of Markdown: removed, changed, added."""
    path = LIST.relative_to(ROOT).as_posix()
    shown = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True)
    if shown.returncode:
        sys.exit(shown.stderr.strip())
    before, now = parts(shown.stdout.split("\n")), parts(LIST.read_text(encoding="utf-8").split("\n"))
    rows = []
    for item, member in sorted(before.keys() | now.keys()):
        # A member of an item that is gone, or new, goes with it.
        if member and ((item, "") not in before or (item, "") not in now):
            continue
        was, is_now = before.get((item, member)), now.get((item, member))
        if was == is_now:
            continue
        what = "added" if was is None else "removed" if is_now is None else "changed"
        cells = [" ".join(lines or []).replace("|", "\\|") for lines in (was, is_now)]
        cells = [f"`{cell}`" if cell else "" for cell in cells]
        rows.append((["removed", "changed", "added"].index(what), f"| {what} | `{item}` | {cells[0]} | {cells[1]} |"))
    print("| | item | was | is |\n|---|---|---|---|")
    print("\n".join(row for _, row in sorted(rows)) if rows else "| nothing has changed | | | |")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "since":
        since(sys.argv[2])
        return
    now = listing()
    if sys.argv[1:] == ["write"]:
        LIST.write_text("\n".join(now), encoding="utf-8")
        return
    listed = LIST.read_text(encoding="utf-8").split("\n")
    difference = list(difflib.unified_diff(listed, now, "tests/public_api.txt", "the public API", lineterm="", n=2))
    if difference:
        print("\n".join(difference))
        sys.exit("the public API has changed. If that is wanted: python3 tests/public_api.py write")
    print(f"the public API is that of tests/public_api.txt: {sum(1 for words in now if not words)} items")


main()
