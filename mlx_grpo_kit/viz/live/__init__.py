"""Pictures that grow while a run goes on, in the foreground or in a thread of its own."""
