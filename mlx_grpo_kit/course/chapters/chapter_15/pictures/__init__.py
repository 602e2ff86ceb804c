"""Pictures of chapter 15: functions of numbers that return a picture and the words for it."""
