"""Chapter 25: turns and tools."""
