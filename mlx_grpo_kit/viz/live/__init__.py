"""Pictures that grow during a run, in the foreground or in a separate thread."""
