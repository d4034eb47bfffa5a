"""Rules: how the state moves, from the paper's updates to searches that run other rules."""
