"""How calls are made of what programs pass: arguments, lists, parts, objects, groups."""
