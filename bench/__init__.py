"""Speed measurements, each in a process of its own, and the tables that are made of them."""
