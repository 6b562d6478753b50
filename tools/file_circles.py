#!/usr/bin/env python3
"""Finds circles of files: files of one folder that use each other, so that none can be read without the others.

    tools/file_circles.py [FOLDER ...]

FOLDER defaults to the folders that must have none. A file uses another one if a path in its code names the module of
that file, or if it calls a method that only that file defines (without that, the files of one large `impl` would hide
from the search). Tests and comments do not count. Exits with 1 if there is a circle.
"""

import re
import sys
from pathlib import Path

FOLDERS = ["crates/proto/src/endpoint", "crates/provider/src"]
ROOT = Path(__file__).resolve().parent.parent
# Methods of the standard library and of other crates: a call does not say whose they are.
COMMON = set(
    """as_ptr as_ref borrow cast clear clone close cmp contains copied count default deref drop end entry eq extend find
    first fits fmt from front get get_mut index insert into is_empty is_some iter last len lock name new next open pop
    post push push_back read remove reserve retain send set take write""".split()
)


def code_of(path):
    """The code of a file without comments, strings and test modules."""
    text = path.read_text()
    # A comment, a string or a character, whichever begins first.
    text = re.sub(r"""//[^\n]*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)'""", " ", text, flags=re.DOTALL)
    while found := re.search(r"#\[cfg\(test\)\]\s*(?:pub(?:\([a-z]+\))? )?(?:mod|impl|fn|use)\b", text):
        text = text[: found.start()] + text[end_of_item(text, found.end()) :]
    return text


def end_of_item(text, start):
    """Behind the item at `start`: a semicolon, or the brace that closes its body."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0 and text[start - 3 : start] != "use":
                return place + 1
        elif text[place] == ";" and depth == 0:
            return place + 1
    return len(text)


def module_of(path, source):
    """The module path of a file, from the crate's root."""
    parts = path.relative_to(source).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def paths_of(text):
    """All paths in the code, as lists of names, with the branches of a `use` written out."""
    for indent, statement in re.findall(r"^( *)(?:pub(?:\([a-z]+\))? )?use\s+([^;]+);", text, re.MULTILINE):
        if not (indent and statement.startswith("super::")):  # of a module inside the file
            yield from branches([], re.sub(r"\s+", "", statement.replace(" as ", "=")))
    for path in re.findall(r"\b[a-z_]\w*(?:::\w+)+", re.sub(r"\buse\s+[^;]+;", "", text)):
        yield path.split("::")


def branches(prefix, tree):
    if tree.startswith("{"):
        depth, begin = 0, 1
        for place, letter in enumerate(tree):
            depth += (letter == "{") - (letter == "}")
            if (letter == "," and depth == 1) or (letter == "}" and depth == 0):
                if tree[begin:place]:
                    yield from branches(prefix, tree[begin:place])
                begin = place + 1
        return
    name, _, rest = tree.partition("::")
    name = name.split("=")[0]
    if rest:
        yield from branches([*prefix, name], rest)
    else:
        yield [*prefix, name]


def resolve(path, module, modules):
    """The file whose module is the longest prefix of the path. `None`: a path to another folder or crate."""
    if path[0] == "crate":
        names = path[1:]
    elif path[0] in ("super", "self"):
        names, rest = list(module), path
        while rest and rest[0] in ("super", "self"):
            names = names[:-1] if rest[0] == "super" else names
            rest = rest[1:]
        names = [*names, *rest]
    else:
        names = [*module, *path]
        if (*module, path[0]) not in modules and len(path) > 0:
            return None
    for length in range(len(names), -1, -1):
        if (found := tuple(names[:length])) in modules:
            return found if length or path[0] in ("crate", "super") else None
    return None


def uses_of(folder):
    """The files of a folder by module, and for each the modules that it uses, with one reason."""
    source = next(parent for parent in [folder, *folder.parents] if parent.name == "src")
    files = [path for path in sorted(folder.rglob("*.rs")) if "tests" not in module_of(path, source)]
    modules = {module_of(path, source): code_of(path) for path in files}
    definers = {}
    for module, code in modules.items():
        for name in re.findall(r"\bfn (\w+)", code):
            definers.setdefault(name, set()).add(module)
    uses = {module: {} for module in modules}
    for module, code in modules.items():
        for path in paths_of(code):
            if (target := resolve(path, module, modules)) is not None and target != module:
                uses[module].setdefault(target, "::".join(path))
        for name in re.findall(r"\.(\w+)(?:::<[^>]*>)?\(", code):
            definer = definers.get(name, ())
            if len(definer) == 1 and name not in COMMON and (target := next(iter(definer))) != module:
                uses[module].setdefault(target, f".{name}()")
    return uses


def circles(uses):
    """Sets of files that use each other (Tarjan's strongly connected components with more than one file)."""
    number, low, stack, found = {}, {}, [], []

    def visit(module):
        number[module] = low[module] = len(number)
        stack.append(module)
        for target in uses[module]:
            if target not in number:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], number[target])
        if low[module] == number[module]:
            circle = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(circle) > 1:
                found.append(circle)

    for module in uses:
        if module not in number:
            visit(module)
    return found


def main():
    folders = [Path(folder).resolve() for folder in sys.argv[1:]] or [ROOT / folder for folder in FOLDERS]
    failed = False
    for folder in folders:
        uses = uses_of(folder)
        found = circles(uses)
        for circle in found:
            failed = True
            print(f"{folder}: {len(circle)} files use each other:")
            for module in sorted(circle):
                inside = [f"{'::'.join(target) or 'lib'} ({why})" for target, why in sorted(uses[module].items()) if target in circle]
                print(f"  {'::'.join(module) or 'lib'} uses {', '.join(inside)}")
        if not found:
            print(f"{folder}: {len(uses)} files, {sum(map(len, uses.values()))} uses, no circle")
    sys.exit(failed)


if __name__ == "__main__":
    main()
