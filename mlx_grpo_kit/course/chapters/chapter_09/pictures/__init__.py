"""Pictures of chapter 09: functions of numbers that return a picture and its description in words."""
