"""Pictures of chapter 23: functions of numbers that return a picture and its alt text."""
