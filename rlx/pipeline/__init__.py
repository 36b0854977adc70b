"""The verbs that join the stages: what comes in, what goes out, and what is made of it."""
