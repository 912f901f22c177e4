"""How processes become ranks: settings, rendezvous, connections; and what they do at exit."""
