"""Pictures that several chapters show. Those of one chapter are in its own folder."""
