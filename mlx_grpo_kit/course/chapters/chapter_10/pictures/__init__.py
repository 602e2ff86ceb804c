"""Pictures of chapter 10: functions of numbers that return a picture and the words for it."""
