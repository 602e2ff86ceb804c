"""Pictures of chapter 22: functions of numbers that return a picture and the words for it."""
