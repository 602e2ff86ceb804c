"""Pictures of chapter 01: functions of numbers that return a picture and the words for it."""
