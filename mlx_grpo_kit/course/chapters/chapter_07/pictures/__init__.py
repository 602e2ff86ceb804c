"""Pictures of chapter 07: functions of numbers that return a picture and its description in words."""
