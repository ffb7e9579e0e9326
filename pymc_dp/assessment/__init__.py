"""What private draws are worth: models beside each other, and predictions beside what was observed."""
