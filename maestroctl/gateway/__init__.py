"""OpenAI-compatible HTTP in front of the coordinator.

`app` routes; `openai_schema` checks bodies; `identity` and `joining` find the job; `descriptor`
describes the stage; `whole` and `streaming` forward the answer; `gate` counts, drains and stops;
`server` listens. `submit` is all that is known of what is behind: `StageService`, `ControlService`.
"""
