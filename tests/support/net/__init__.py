"""Hosts of tests as network namespaces, joined by networks that lose, delay, reorder, double, slow down and cut."""
