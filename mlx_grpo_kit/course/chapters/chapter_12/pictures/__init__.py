"""Pictures of chapter 12: functions of numbers that return a picture and the words for it."""
