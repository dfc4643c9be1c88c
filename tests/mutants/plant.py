"""Plants a random sample of the mutants that cargo-mutants lists into one copy of the sources, so that they are compiled once.
The variable MUTANT turns one of them on, by its number in the list. Mutants that do not compile are left out.

Usage: plant.py FOLDER SAMPLE SEED. FOLDER has list.json and the sources in tree/; planted.json is written.
"""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import tree_sitter_rust
from tree_sitter import Language, Parser

PARSER = Parser(Language(tree_sitter_rust.language()))
# What is evaluated by the compiler cannot be switched at run time.
CONST = {
    "array_type", "attribute_item", "const_block", "const_item", "const_parameter", "enum_variant", "macro_definition",
    "macro_invocation", "match_pattern", "static_item", "type_arguments",
}
ON = re.compile(r"crate::mutant::on\((\d+)\)")
SWITCH = Path(__file__).with_name("switch.rs")


def on(number):
    return f"crate::mutant::on({number})"


class Source:
    """A file and the mutants of its nodes."""

    def __init__(self, text):
        self.bytes = text.encode()
        self.lines = text.splitlines(keepends=True)
        self.root = PARSER.parse(self.bytes).root_node
        self.mutants = {}

    def at(self, place):
        """The offset of a place."""
        before = self.lines[: place["line"] - 1]
        return sum(len(line.encode()) for line in before) + len(
            self.lines[place["line"] - 1][: place["column"] - 1].encode()
        )

    def text(self, node):
        return self.bytes[node.start_byte : node.end_byte].decode()

    def is_const(self, node):
        below = None
        while node:
            is_guard = below and node.child_by_field_name("condition") == below
            if node.type in CONST and not is_guard:
                return True
            if node.type == "function_item":
                words = [self.text(child).split() for child in node.children if child.type == "function_modifiers"]
                return any("const" in word for word in words)
            below, node = node, node.parent
        return False

    def find(self, mutant):
        """The node that a mutant changes."""
        start, end = (self.at(mutant["span"][edge]) for edge in ("start", "end"))
        node = self.root.descendant_for_byte_range(start, max(start, end - 1))
        match mutant["genre"]:
            case "FnValue":
                while node and node.type != "function_item":
                    node = node.parent
                node = node and node.child_by_field_name("body")
                return node if node and node.start_byte <= start and end <= node.end_byte else None
            case "BinaryOperator":
                node = node.parent
                return node if node.type in ("binary_expression", "compound_assignment_expr") else None
            case "UnaryOperator":
                node = node.parent
                return node if node.type == "unary_expression" and node.start_byte == start else None
            case "MatchArmGuard":
                while node.parent and node.parent.type != "match_pattern":
                    node = node.parent
                return node if node.parent and "let " not in self.text(node) else None
            case "MatchArm":
                while node and node.type != "match_arm":
                    node = node.parent
                guard = node and node.child_by_field_name("pattern").child_by_field_name("condition")
                return node if node and not (guard and "let " in self.text(guard)) else None
            case "StructField":
                while node and node.type not in ("field_initializer", "shorthand_field_initializer"):
                    node = node.parent
                return node
        return None

    def plant(self, number, mutant):
        node = self.find(mutant)
        if not node or self.is_const(node):
            return False
        self.mutants.setdefault(node.id, []).append((number, mutant["genre"], mutant["replacement"]))
        return True

    def render(self, node):
        """The text of a node with the mutants of it and of all below it."""
        mutants = self.mutants.get(node.id)
        return self.switched(node, mutants) if mutants else self.children(node, node.start_byte, node.end_byte)

    def children(self, node, start, end):
        """The text of a part of a node."""
        out, at = "", start
        for child in node.children:
            if start <= child.start_byte and child.end_byte <= end:
                out += self.bytes[at : child.start_byte].decode() + self.render(child)
                at = child.end_byte
        return out + self.bytes[at:end].decode()

    def switched(self, node, mutants):
        genre = mutants[0][1]
        if genre == "MatchArm":
            return self.arm(node, on(mutants[0][0]))
        if genre == "StructField":
            return self.field(node, on(mutants[0][0]))
        text = self.children(node, node.start_byte, node.end_byte)
        if genre == "FnValue":
            return "{" + "".join(f" if {on(n)} {{ return {other}; }}" for n, _, other in mutants) + text[1:]
        if genre == "MatchArmGuard":
            for number, _, other in mutants:
                text = f"({on(number)} || ({text}))" if other == "true" else f"(!{on(number)} && ({text}))"
            return text
        # Only one mutant is on at a time, so that another one's operands are the original ones.
        if genre == "UnaryOperator":
            others = [(number, self.text(node.children[-1])) for number, _, _ in mutants]
        else:
            sides = [self.text(node.child_by_field_name(side)) for side in ("left", "right")]
            others = [(number, f"{sides[0]} {other} {sides[1]}") for number, _, other in mutants]
        return "(" + "".join(f"if {on(n)} {{ {other} }} else " for n, other in others) + f"{{ {text} }})"

    def arm(self, node, is_on):
        """An arm that matches nothing while its mutant is on."""
        pattern = node.child_by_field_name("pattern")
        guard = pattern.child_by_field_name("condition")
        head_end = guard.start_byte if guard else pattern.end_byte
        head = self.bytes[node.start_byte : head_end].decode()
        guard = f"(!{is_on} && ({self.render(guard)}))" if guard else f" if !{is_on} "
        return head + guard + self.children(node, pattern.end_byte, node.end_byte)

    def field(self, node, is_on):
        """A field that has the value of the base while its mutant is on."""
        base = next(child for child in node.parent.children if child.type == "base_field_initializer")
        base = self.text(base.children[-1])
        if base == "Default::default()":
            base = f"<{self.text(node.parent.parent.child_by_field_name('name'))} as Default>::default()"
        if node.type == "shorthand_field_initializer":
            name = value = self.text(node)
        else:
            name = self.text(node.child_by_field_name("field"))
            value = self.render(node.child_by_field_name("value"))
        return f"{name}: if {is_on} {{ ({base}).{name} }} else {{ {value} }}"


def write(tree, sources, mutants):
    """Writes the sources with these mutants. Returns those that are in them."""
    files = {path: Source(sources[path]) for path in {mutant["file"] for _, mutant in mutants}}
    planted = []
    for number, mutant in mutants:
        if files[mutant["file"]].plant(number, mutant):
            planted.append(number)
    for path, text in sources.items():
        file = files.get(path)
        (tree / path).write_text(file.render(file.root) if file else text)
    lib = tree / "src/lib.rs"
    allow = "#![allow(warnings, arithmetic_overflow, unconditional_panic)]\n"
    lib.write_text(allow + lib.read_text() + "\n#[doc(hidden)]\npub mod mutant;\n")
    (tree / "src/mutant.rs").write_text(SWITCH.read_text())
    return planted


def failing(tree, profile):
    """The mutants at which the compiler finds errors; `None`: it finds none."""
    check = ["cargo", "check", "--all-features", "--lib", "--profile", profile, "-p", "tower-distributed"]
    run = subprocess.run([*check, "--message-format=json"], cwd=tree, stdout=subprocess.PIPE, text=True)
    found = set()
    for line in run.stdout.splitlines():
        error = json.loads(line).get("message")
        if not error or error["level"] != "error":
            continue
        for span in error["spans"]:
            if not span["is_primary"] or not span["file_name"].startswith("src/"):
                continue
            lines = (tree / span["file_name"]).read_text().split("\n")
            first = span["line_start"] - 1
            if (error["code"] or {}).get("code") in ("E0004", "E0005"):
                # A match without one of its arms is not exhaustive.
                found |= {int(n) for line in lines[first : first + 40] for n in re.findall(r"if !" + ON.pattern, line)}
                continue
            before = "\n".join(lines[max(first - 12, 0) : first] + [lines[first][: span["column_start"] - 1]])
            found |= {int(n) for n in ON.findall(before)[-1:]}
    if run.returncode and not found:
        sys.exit("the sources do not compile, and no mutant is to blame")
    return found if run.returncode else None


def main():
    folder, sample, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    tree = folder / "tree"
    mutants = list(enumerate(json.loads((folder / "list.json").read_text()), 1))
    sources = {path: (tree / path).read_text() for path in {"src/lib.rs", *(mutant["file"] for _, mutant in mutants)}}
    random.Random(seed).shuffle(mutants)
    chosen, dropped = mutants[:sample], set()
    for profile in ("dev", "test"):
        while True:
            left = [(number, mutant) for number, mutant in chosen if number not in dropped]
            planted = write(tree, sources, left)
            bad = failing(tree, profile)
            if bad is None:
                break
            dropped |= bad
    skipped = Counter(mutant["genre"] for number, mutant in left if number not in set(planted))
    (folder / "planted.json").write_text(json.dumps(planted))
    print(f"{len(planted)} mutants are planted; {len(dropped)} do not compile; cannot be switched: {dict(skipped)}")


main()
