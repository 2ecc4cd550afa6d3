"""What the tests of the core and of the labs share: tests/fixtures.py."""

pytest_plugins = ["tests.fixtures"]
