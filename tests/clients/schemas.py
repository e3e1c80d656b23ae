"""Random JSON schemas of all kinds that grammars can hold an answer to (src/grammar/schema.h)."""
KEYS = ["a", "name", "größe", "ключ", "値", "with space", "q\"uote", "back\\slash", "x-1", "dots.and.more", "emoji😀"]
WORDS = ["red", "grün", "ein Wort", "a\"b", "1", "null", "", "😀"]
PATTERNS = ["^[a-z]{1,4}$", "^\\d{2,3}$", "^(ab|c)+$", "^[A-F0-9]{4}$", "^x[^y]?z$"]


def number(rng, integer):
    s = {"type": "integer" if integer else "number"}
    low = rng.choice([-1000, -7, 0, 3, 12.5]) if not integer else rng.choice([-1000, -7, 0, 3])
    kind = rng.randrange(5)
    if kind == 0:
        s["minimum"] = low
    elif kind == 1:
        s["maximum"] = low
    elif kind == 2:
        s |= {"minimum": low, "maximum": low + rng.choice([0, 1, 90])}
    elif kind == 3:
        s |= {"exclusiveMinimum": low, "exclusiveMaximum": low + rng.choice([2, 55])}
    return s


def string(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 1:
        low = rng.randrange(3)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(1, 12)}
    if kind == 2:
        return {"type": "string", "enum": rng.sample(WORDS, rng.randint(1, 4))}
    if kind == 3:
        return {"const": rng.choice(WORDS)}
    return {"type": "string"}


def array(rng, depth):
    s = {"type": "array", "items": value(rng, depth + 1)}
    if rng.random() < 0.8:
        s["maxItems"] = rng.randint(1, 3)
    if rng.random() < 0.4:
        s["minItems"] = rng.randint(0, s.get("maxItems", 2))
    if rng.random() < 0.2:
        s = {"type": "array", "prefixItems": [value(rng, depth + 1), value(rng, depth + 1)], "items": False, "minItems": 2}
    return s


def obj(rng, depth, most=4):
    keys = rng.sample(KEYS, rng.randint(1, most))
    s = {"type": "object", "properties": {k: value(rng, depth + 1) for k in keys}, "required": [k for k in keys if rng.random() < 0.5]}
    if rng.random() < 0.5:
        s["additionalProperties"] = False
    return s


def value(rng, depth):
    """A schema; what has no end of its own is rarer the deeper it lies."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "union", "types", "reference"] + (["array", "object"] * 2 if depth < 3 else [])
    kind = rng.choice(kinds)
    if kind == "string":
        return string(rng)
    if kind in ("integer", "number"):
        return number(rng, kind == "integer")
    if kind == "array":
        return array(rng, depth)
    if kind == "object":
        return obj(rng, depth)
    if kind == "enum":
        return {"enum": rng.sample([1, -2.5, "x", None, True, [1, "a"], {"k": 0}], rng.randint(1, 4))}
    if kind == "union":
        return {"anyOf": [value(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if kind == "types":
        return {"type": rng.sample(["string", "integer", "boolean", "null"], 2)}
    return {"type": kind} if kind in ("boolean", "null") else {"type": "boolean", "description": "a description"}


def parameters(rng):
    s = obj(rng, 0, most=6)
    if rng.random() < 0.3:
        key = next(iter(s["properties"]))
        s["$defs"] = {"shared": value(rng, 1)}
        s["properties"][key] = {"$ref": "#/$defs/shared"}
    return s
