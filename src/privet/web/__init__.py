"""The planner page: a small local server, one static page, and the library's own answers as JSON."""
