"""Pictures of chapter 13: functions of numbers that return a picture and the words for it."""
