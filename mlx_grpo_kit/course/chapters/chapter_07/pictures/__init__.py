"""Pictures of chapter 07: functions of numbers that return a picture and the words for it."""
