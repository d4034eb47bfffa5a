"""What each command takes: light modules, so that help is shown without what the work needs."""
