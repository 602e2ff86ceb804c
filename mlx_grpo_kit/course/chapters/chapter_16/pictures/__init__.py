"""Pictures of chapter 16: functions of numbers that return a picture and its description in words."""
