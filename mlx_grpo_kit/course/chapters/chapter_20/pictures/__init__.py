"""Pictures of chapter 20: functions of numbers that return a picture and the words for it."""
