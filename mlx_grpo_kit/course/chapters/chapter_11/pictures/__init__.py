"""Pictures of chapter 11: functions of numbers that return a picture and the words for it."""
