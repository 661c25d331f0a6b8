"""Makes links of code in the text that is a public name or a command.

`sw.Collector`, `Collector.collect` and `stepwell view runs/pong` are written as code, in pages and
docstrings; each leads to the place that describes it.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from command_line import PAGE as COMMANDS
from docutils import nodes
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"(?P<name>[A-Za-z_]\w*(\.\w+)*)(?P<call>\(.*\))?", re.DOTALL)
COMMAND = re.compile(r"stepwell (?P<name>[a-z]+)\b")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_post_transform(QualifyNames)
    app.add_post_transform(LinkNames)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}


def objects(env: BuildEnvironment) -> dict[str, Any]:
    """All described Python objects, by full name."""
    return env.domains.python_domain.objects


def short(name: str) -> str:
    """A full name without its modules: ``Collector.collect``."""
    parts = name.split(".")
    module = next((at for at, part in enumerate(parts) if part[0].isupper()), len(parts) - 1)
    return ".".join(parts[module:])


def unique_names(env: BuildEnvironment) -> dict[str, str]:
    """Full names by short ones, less those that several objects have."""
    full = [name for name, entry in objects(env).items() if not entry.aliased]
    times = Counter(map(short, full))
    return {short(name): name for name in full if times[short(name)] == 1}


class QualifyNames(SphinxPostTransform):
    """Gives names in a signature the module of the signature: others may have the same names."""

    default_priority = 5  # before references are resolved

    def run(self, **options: Any) -> None:
        """Look at all signatures of a page."""
        for signature in self.document.findall(desc_signature):
            for node in signature.findall(pending_xref):
                node.attributes.pop("refspecific", None)  # no search for any object of that name
                full = f"{signature.get('module')}.{node['reftarget']}"
                if full in objects(self.env):
                    node["reftarget"] = full


class LinkNames(SphinxPostTransform):
    """Wraps each fitting piece of code in a reference."""

    default_priority = 200
    formats: ClassVar[tuple[str, ...]] = ("html",)

    def run(self, **options: Any) -> None:
        """Look at all code in the text of a page."""
        names = unique_names(self.env)
        for code in list(self.document.findall(nodes.literal)):
            if not inside(code, nodes.reference, nodes.title, desc_signature):
                self._link(code, names)

    def _link(self, code: nodes.literal, names: dict[str, str]) -> None:
        text = code.astext()
        if command := COMMAND.match(text):
            anchor = f"stepwell-{command['name']}"
            if any(each[1] == anchor for each in self._commands()):
                self._wrap(code, COMMANDS, anchor)
        elif found := NAME.fullmatch(text):
            full = self._full_name(found["name"], found["call"] is not None, names)
            if full:
                self._wrap(code, objects(self.env)[full].docname, objects(self.env)[full].node_id)

    def _commands(self) -> list[tuple[str, str]]:
        toc = self.env.tocs.get(COMMANDS)
        found = toc.findall(nodes.reference) if toc else ()
        return [(COMMANDS, each["anchorname"].lstrip("#")) for each in found]

    def _full_name(self, name: str, is_call: bool, names: dict[str, str]) -> str | None:
        if name.startswith(("sw.", "stepwell.")):
            full = re.sub(r"^sw\.", "stepwell.", name)
            return full if full in objects(self.env) else None
        in_reference = self.env.docname.startswith("reference/api/")
        plain_word = name.islower() and "_" not in name
        return None if plain_word and not (is_call or in_reference) else names.get(name)

    def _wrap(self, code: nodes.literal, page: str, anchor: str) -> None:
        assert code.parent is not None
        link = make_refnode(self.app.builder, self.env.docname, page, anchor, code.deepcopy())
        code.replace_self(link)


def inside(node: nodes.Node, *kinds: type[nodes.Node]) -> bool:
    """Whether a node lies in one of these kinds."""
    above = node.parent
    while above is not None:
        if isinstance(above, kinds):
            return True
        above = above.parent
    return False


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Find what a type in a signature means: often it has the name of the file that defines it.

    Types that have no page are shown by name: those of other libraries, whose pages cannot be
    looked up offline, and names of types such as `Where`.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    full = unique_names(env).get(short(target))
    if full:
        entry = objects(env)[full]
        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content)
    known = known_names()
    return content if {target.split(".")[0], target.split(".")[-1]} & known else None


@cache
def known_names() -> frozenset[str]:
    """All names that Stepwell's modules define or import, and those of Python itself.

    An optional library may not be installed: what is imported when it is needed, or for type
    checkers alone, is read from the source.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith("stepwell")]
    names = {name for module in modules for name in vars(module)}
    files = [Path(module.__file__ or "") for module in modules]
    for file in [file for file in files if file.suffix == ".py"]:  # the core is compiled
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(each.asname or each.name).partition(".")[0] for each in node.names}
    top_modules = {name.partition(".")[0] for name in sys.modules}
    return frozenset(names | top_modules | set(vars(builtins)))
