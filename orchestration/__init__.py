"""Playing scenarios: agents on their servers, both timelines, records, and a verdict on how faithful it was."""
