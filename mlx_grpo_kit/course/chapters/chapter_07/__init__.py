"""Chapter 07: digits, in lockstep with torch."""
