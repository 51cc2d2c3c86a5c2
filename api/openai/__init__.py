"""OpenAI's dialect: models, chat completions, text completions."""
