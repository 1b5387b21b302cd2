"""Pools of servers that speak OpenAI's API and are not ours."""
