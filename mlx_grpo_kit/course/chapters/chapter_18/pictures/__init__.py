"""Pictures of chapter 18: functions of numbers that return a picture and the words for it."""
