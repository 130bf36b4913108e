"""What a run needs to go on after it was stopped anywhere: written, found again and revived."""
