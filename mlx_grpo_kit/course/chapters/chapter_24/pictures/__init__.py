"""Pictures of chapter 24: functions of numbers or source that return a picture and the words for it."""
