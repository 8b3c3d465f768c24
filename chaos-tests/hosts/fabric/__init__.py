"""The network between hosts: conditions of links, the switch that applies them, addresses."""
