"""Pictures of chapter 00: functions of numbers that return a picture and the words for it."""
