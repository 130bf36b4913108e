"""Commands that measure and write a record: python -m benchmarks.NAME"""
