"""Operations that torch lacks, each beside a plain statement of what it computes."""
