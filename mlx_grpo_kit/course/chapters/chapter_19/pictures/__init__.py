"""Pictures of chapter 19: functions of numbers that return a picture and the words for it."""
