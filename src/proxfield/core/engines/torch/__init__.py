"""The kernel set "torch": programs in plain torch operations."""
