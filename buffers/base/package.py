"""The package itself: its version, and names that are imported when they are first used."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence

__version__ = "0.1.0"


def lazy_names(
    package: str,
    modules: Mapping[str, Sequence[str]],
    other_names: Mapping[str, str] | None = None,
    inner: Sequence[str] = (),
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names are imported when first used."""
    # The command line and worker processes start before most modules are needed (PEP 562). A
    # module's own name stands for itself; a dot before a module leads to the package above.
    # ``other_names``: what is meant by names that the package does not have. ``inner``: packages
    # among the names, in which a name that this one does not have is looked up.
    homes = {name: module for module, names in modules.items() for name in names}
    namespace = vars(sys.modules[package])

    def find(name: str) -> object:
        if name not in homes:
            meant = (other_names or {}).get(name, "")
            hint = f": expected {meant}" if meant else ""
            if not hint and name[0] != "_":
                places = [each for each in inner if name in vars(find(each))["__all__"]]
                from difflib import get_close_matches  # takes 2 ms, for this message alone

                near = get_close_matches(name, homes, 1, 0.75)
                hint = f": expected {package}.{places[0]}.{name}" if places else ""
                hint = hint or (f": did you mean {near[0]}?" if near else "")
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)
        module = importlib.import_module(f".{homes[name]}", package)
        namespace[name] = module if name == homes[name] else getattr(module, name)
        return namespace[name]

    def names() -> list[str]:
        special = (name for name in namespace if name.startswith("__"))
        return sorted({*special, *namespace["__all__"], *homes})

    return find, names
