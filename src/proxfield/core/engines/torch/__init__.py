"""The engine "torch": programs in plain torch operations."""
