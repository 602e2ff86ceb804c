"""Pictures of chapter 15: functions of numbers that return a picture and its description in words."""
