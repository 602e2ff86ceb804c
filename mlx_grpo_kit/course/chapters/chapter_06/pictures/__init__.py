"""Pictures of chapter 06: functions of numbers that return a picture and the words for it."""
