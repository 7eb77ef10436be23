"""The tests mirror `twisted_broker/`; `compat/` runs real clients against a real process."""
