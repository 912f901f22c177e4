"""How processes become ranks: settings, finding each other, connections, and leaving."""
