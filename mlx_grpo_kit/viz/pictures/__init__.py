"""What the chapters draw: pure functions of numbers and arrays to a picture and the words for it, a file an idea."""
