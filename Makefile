# Thin names for scripts/*, which work without make.
.PHONY: demo test test-slow check setup

demo:
	@scripts/demo

test:
	@scripts/test

test-slow:
	@scripts/test-slow

check:
	@scripts/check

setup:
	@scripts/setup
