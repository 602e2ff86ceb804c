"""What the chapters draw: pure functions of numbers and arrays to a picture and the words for it.

A file holds one idea; the folders are the parts of the course.
"""
