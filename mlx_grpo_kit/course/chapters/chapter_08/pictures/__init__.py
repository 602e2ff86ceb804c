"""Pictures of chapter 08: functions of numbers that return a picture and its description in words."""
