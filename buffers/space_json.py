"""Spaces as JSON, under the name that documents give them."""

from .spec.space_json import space_from_json, space_to_json, spaces_facts

__all__ = ["space_from_json", "space_to_json", "spaces_facts"]
