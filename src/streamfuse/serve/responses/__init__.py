"""OpenAI's Responses API: requests of items, answers of items, and a store for both."""
