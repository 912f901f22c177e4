// What the package is called where it is installed, for errors that say what to install. pyproject.toml and
// python/collectives/_distribution.py have the same name.
#pragma once

#define COLLECTIVES_DISTRIBUTION "collectives-comm"
