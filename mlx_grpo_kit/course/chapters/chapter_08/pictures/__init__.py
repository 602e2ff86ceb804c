"""Pictures of chapter 08: functions of numbers that return a picture and the words for it."""
