"""The paper's tables and figures, run again: cells, their runs, and what is written about them."""
