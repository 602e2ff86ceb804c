"""Pictures of chapter 22: functions of numbers that return a picture and its alt text."""
