"""Pictures of chapter 04: functions of numbers that return a picture and the words for it."""
