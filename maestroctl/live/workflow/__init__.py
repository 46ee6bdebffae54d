"""Executes the steps of workflows: prompts, LLM calls, tools. Start reading at `runner`."""
