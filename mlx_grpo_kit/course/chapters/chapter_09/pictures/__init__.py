"""Pictures of chapter 09: functions of numbers that return a picture and the words for it."""
