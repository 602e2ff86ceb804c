"""Pictures of chapter 21: functions of numbers that return a picture and its alt text."""
