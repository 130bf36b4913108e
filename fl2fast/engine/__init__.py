"""One communication round on stacked learners; knows no method by name."""
