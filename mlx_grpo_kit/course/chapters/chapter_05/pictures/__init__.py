"""Pictures of chapter 05: functions of numbers that return a picture and the words for it."""
