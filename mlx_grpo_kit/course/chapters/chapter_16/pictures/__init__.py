"""Pictures of chapter 16: functions of numbers that return a picture and the words for it."""
