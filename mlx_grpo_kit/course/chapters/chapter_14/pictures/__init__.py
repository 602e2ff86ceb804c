"""Pictures of chapter 14: functions of numbers that return a picture and its description in words."""
