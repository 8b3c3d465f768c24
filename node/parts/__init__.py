"""Shares of the replicated state, one file for each feature; `node.state_parts` lists them."""
