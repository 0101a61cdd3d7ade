"""A corpus of instances made from a JSON Schema: valid ones, and variants that violate each of its keywords.

A variant that was meant to violate a keyword and does not is kept: it shows where the schema is laxer than the code.
Only what a schema itself says is used, so the same code serves every published schema of the project. A keyword that
this module does not know is an error: a corpus must not quietly leave it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema_rs

ANNOTATIONS = frozenset({"$schema", "$id", "$defs", "title", "description", "examples"})
CONTAINERS = frozenset({"properties", "$ref"})
UNIONS = frozenset({"oneOf", "anyOf"})
ASSERTIONS = frozenset({
    "type", "const", "enum", "required", "dependentRequired", "additionalProperties", "pattern", "format", "minLength",
    "maxLength", "minimum", "maximum", "minItems", "maxItems", "uniqueItems", "items",
})  # fmt: skip

OF_EVERY_TYPE: tuple[Any, ...] = (None, False, True, 0, 7, 1.5, "", "x", [], [{}], {}, {"n": 1})


@dataclass(frozen=True)
class Variant:
    """An instance near a valid one, and the keyword (a JSON pointer into the schema) that it violates, or None."""

    violated: str | None
    instance: Any


class SchemaCorpus:
    """The instances that one schema document gives rise to."""

    def __init__(self, path: Path) -> None:
        self.document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}

    def accepts(self, pointer: str, instance: Any, *, lenient: bool = False) -> bool:
        """Whether the definition at `pointer` accepts; `lenient` leaves `additionalProperties` out everywhere."""
        schema = {"$ref": pointer} if pointer != "#" else {"oneOf": self.document["oneOf"]}
        return self._valid(f"{pointer} {lenient}", schema, instance, lenient=lenient)

    @cached_property
    def keywords(self) -> frozenset[str]:
        """Pointers to everything in the schema that an instance can violate."""
        found: set[str] = set()

        def walk(node: Any, pointer: str) -> None:
            if node is False:
                found.add(pointer)
                return
            for key, value in node.items():
                at = f"{pointer}/{key}"
                if key in ("properties", "$defs"):
                    for name, inner in value.items():
                        walk(inner, f"{at}/{name}")
                elif key in UNIONS:
                    found.add(at)
                    for index, inner in enumerate(value):
                        walk(inner, f"{at}/{index}")
                elif key == "items":
                    walk(value, at)
                    found.add(at)
                elif key in ASSERTIONS:
                    found.add(at)
                elif key not in ANNOTATIONS | CONTAINERS:
                    raise AssertionError(f"{at}: this corpus does not know the keyword")

        walk(self.document, "#")
        return frozenset(found)

    def examples(self, pointer: str) -> list[Any]:
        """Valid instances: every branch, every optional member with and without, both ends of every range."""
        return self._examples(self._at(pointer))

    def basis(self, pointer: str) -> list[Any]:
        """Few of the examples, which together meet every part of the schema that all of them meet."""
        chosen, met = [], set[str]()
        for example in self.examples(pointer):
            meets = set(self._met(self._at(pointer), pointer, example))
            if not meets <= met:
                chosen.append(example)
                met |= meets
        return chosen

    def variants(self, pointer: str, instance: Any) -> Iterator[Variant]:
        """Variants of a valid instance, each made to violate one keyword at one place."""
        yield from self._variants(self._at(pointer), pointer, instance)

    @cached_property
    def _known_members(self) -> dict[str, list[Any]]:
        """Every member name that is declared anywhere, with values that are right for it somewhere."""
        known: dict[str, list[Any]] = {}
        for definition in self.document["$defs"].values():
            for name, inner in definition.get("properties", {}).items():
                if inner is not False:
                    known.setdefault(name, self._examples(inner)[:1])
        return known

    def _met(self, node: Any, pointer: str, instance: Any) -> Iterator[str]:
        """Pointers to the parts of the schema that a valid instance meets."""
        yield pointer
        if "$ref" in node:
            yield from self._met(self._at(node["$ref"]), node["$ref"], instance)
        for key in UNIONS & node.keys():
            for index, branch in enumerate(node[key]):
                if self._valid(f"{pointer}/{key}/{index}", branch, instance):
                    yield from self._met(branch, f"{pointer}/{key}/{index}", instance)
        for name, inner in node.get("properties", {}).items():
            if name in instance:
                yield from self._met(inner, f"{pointer}/properties/{name}", instance[name])
        for item in instance if "items" in node else ():
            yield from self._met(node["items"], f"{pointer}/items", item)

    # --- Valid instances

    def _examples(self, node: Any) -> list[Any]:
        if "examples" in node:
            return list(node["examples"])
        if "$ref" in node:
            return self.examples(node["$ref"])
        if "const" in node:
            return [node["const"]]
        if "enum" in node:
            return list(node["enum"])
        unions = [branch for key in UNIONS & node.keys() for branch in node[key]]
        if unions and "properties" not in node:
            return [example for branch in unions for example in self._examples(branch)]
        if unions:
            merged = [
                {
                    "required": node.get("required", []) + branch.get("required", []),
                    "properties": {**node["properties"], **branch["properties"]},
                }
                for branch in unions
            ]
            return [example for one in merged for example in self._objects(one)]
        kind = node["type"]
        if kind == "object":
            return self._objects(node) if "properties" in node else [{}, {"any": ["thing", None]}]
        if kind == "array":
            items = self._examples(node["items"])
            if node.get("uniqueItems"):
                return [items[: node["minItems"]], items[: node["maxItems"]]]
            return [items[:1] * node["minItems"], items, items[:1] * node["maxItems"]]
        if kind == "integer":
            return [node["minimum"], node["maximum"]]
        assert kind == "boolean", f"{kind} needs examples"
        return [False, True]

    def _objects(self, node: Any) -> list[Any]:
        members = {name: self._examples(inner) for name, inner in node["properties"].items() if inner is not False}
        full = {name: values[0] for name, values in members.items()}
        minimal = {name: full[name] for name in node.get("required", [])}
        optional = members.keys() - minimal.keys()
        together = {name: (name, *node.get("dependentRequired", {}).get(name, ())) for name in sorted(optional)}
        return [
            full,
            *([minimal] if optional else []),
            *({**minimal, **{one: full[one] for one in names}} for names in together.values()),
            *({**full, name: value} for name, values in members.items() for value in values[1:]),
        ]

    # --- Variants

    def _variants(self, node: Any, pointer: str, instance: Any) -> Iterator[Variant]:
        if "$ref" in node:
            yield from self.variants(node["$ref"], instance)
        for key in node:
            at = f"{pointer}/{key}"
            if key in UNIONS:
                yield from self._of_union(node, key, at, instance)
            elif key == "properties":
                yield from self._of_members(node[key], at, instance)
            elif key == "items":
                yield from self._of_items(node, at, instance)
            elif key in ASSERTIONS:
                for changed in self._candidates(key, node, instance):
                    yield Variant(at if self._violates(node, key, at, changed) else None, changed)

    def _of_union(self, node: Any, key: str, at: str, instance: Any) -> Iterator[Variant]:
        for index, branch in enumerate(node[key]):
            if not self._valid(f"{at}/{index}", branch, instance):
                continue
            for inner in self._variants(branch, f"{at}/{index}", instance):
                yield inner
                if self._violates(node, key, at, inner.instance):
                    yield Variant(at, inner.instance)

    def _of_items(self, node: Any, at: str, instance: Any) -> Iterator[Variant]:
        for index in {0, len(instance) - 1}:
            for inner in self._variants(node["items"], at, instance[index]):
                changed = [*instance[:index], inner.instance, *instance[index + 1 :]]
                yield Variant(inner.violated, changed)
                if self._violates(node, "items", at, changed):
                    yield Variant(at, changed)

    def _of_members(self, properties: Any, at: str, instance: Any) -> Iterator[Variant]:
        for name, inner in properties.items():
            if inner is False:
                values = [*OF_EVERY_TYPE, *self._known_members.get(name, [])]
                yield from (Variant(f"{at}/{name}", {**instance, name: value}) for value in values)
            elif name in instance:
                for found in self._variants(inner, f"{at}/{name}", instance[name]):
                    yield Variant(found.violated, {**instance, name: found.instance})

    def _candidates(self, key: str, node: Any, instance: Any) -> list[Any]:
        """Instances that may violate the keyword `key` of `node`, made from a valid one."""
        if key in ("type", "const", "enum"):
            return [*OF_EVERY_TYPE, *(_texts(instance) if isinstance(instance, str) else [])]
        if key == "required":
            return [{name: value for name, value in instance.items() if name != gone} for gone in node["required"]]
        if key == "dependentRequired":
            gone = [name for names in node[key].values() for name in names]
            return [{name: value for name, value in instance.items() if name != one} for one in gone if one in instance]
        if key == "additionalProperties":
            return self._with_more(node, instance)
        if key == "minimum":
            return [node[key] - 1, -(2**63)]
        if key == "maximum":
            return [node[key] + 1, 2**63]
        if key == "minItems":
            return [instance[: node[key] - 1]]
        if key == "maxItems":
            return [[instance[0]] * (node[key] + 1)]
        if key == "uniqueItems":
            return [[*instance, instance[-1]]]
        if key == "minLength":
            return [instance[: node[key] - 1]]
        if key == "maxLength":
            return [instance + instance[-1] * (node[key] + 1 - len(instance))]
        return _texts(instance)

    def _with_more(self, node: Any, instance: Any) -> list[Any]:
        """`instance` with a member of another object, of no object, or spelled in another case."""
        aliases = {spelling(name) for name in node["properties"] for spelling in (str.upper, str.title)}
        more: dict[str, list[Any]] = {**self._known_members, **{alias: ["x"] for alias in sorted(aliases)}}
        more |= {"undeclared": [None], "": [{}]}
        # Empty and null forms of what only answers carry (seed worker-contract).
        more["reply_to"] = [*more.get("reply_to", []), ""]
        more["error"] = [*more.get("error", []), None]
        return [
            {**instance, name: value}
            for name, values in more.items()
            if name not in node["properties"]
            for value in values
        ]

    def _violates(self, node: Any, key: str, at: str, instance: Any) -> bool:
        """Whether the keyword alone, or with the `properties` it refers to, refuses the instance."""
        alone = {key: node[key]}
        if key == "additionalProperties":
            alone["properties"] = dict.fromkeys(node["properties"], True)
        return not self._valid(at, alone, instance)

    # --- Plumbing

    def _at(self, pointer: str) -> Any:
        node: Any = self.document
        for step in pointer.split("/")[1:]:
            node = node[int(step)] if isinstance(node, list) else node[step]
        return node

    def _valid(self, name: str, schema: Any, instance: Any, *, lenient: bool = False) -> bool:
        validator = self._validators.get(name)
        if validator is None:
            definitions = self.document["$defs"]
            if lenient:
                definitions = _without(definitions, "additionalProperties")
            whole = {"$defs": definitions, **schema}
            validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
            self._validators[name] = validator
        return validator.is_valid(instance)


def _without(node: Any, key: str) -> Any:
    if isinstance(node, dict):
        return {name: _without(inner, key) for name, inner in node.items() if name != key}
    return [_without(inner, key) for inner in node] if isinstance(node, list) else node


def _texts(text: str) -> list[str]:
    """Near misses of a text: other case, blanks, a line end, one character more or less, look-alikes, other forms."""
    fullwidth = "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in text)
    spelled = [
        "", text[:-1], text[1:], text + text[-1:], text[:1] + text, text + "\n", "\n" + text, text + " ", " " + text,
        text + "\0", text.upper(), text.lower(), text.swapcase(), fullwidth, "0", "0" + text, "+" + text, "-" + text,
        text + ".0", text + "e0", "18446744073709551616", "99999999999999999999", text + "=", text[:-1] + "B",
        text[:-1] + "+", text[:-1] + "/", "_" + text, "." + text, "a b", "\u00e9" + text[1:], "1" + text,
        text.replace("T", " "), text.replace("T", "t"), text.replace("Z", "z"), text.replace("Z", "+00:00"),
        text.replace(".25", ".1234567"), text.replace(".25", "."), text.replace("11-30", "02-30"),
        text.replace("11-30", "13-01"), text.replace("08:15:30", "24:00:00"), text.replace("08:15:30", "23:59:60"),
        text.replace("2026", "0000"), text.replace("2026", "2026-"), text.replace("-", ""),
    ]  # fmt: skip
    return [one for one in spelled if one != text]
