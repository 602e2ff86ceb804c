"""Pictures of chapter 14: functions of numbers that return a picture and the words for it."""
