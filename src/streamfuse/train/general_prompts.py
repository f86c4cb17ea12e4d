"""General prompts for a first n-gram table of any model, and a few others to measure it on."""

from __future__ import annotations

from typing import Final

_TASKS: Final = (
    "Explain in simple words: {}",
    "Write a short paragraph about this: {}",
    "List five facts about this: {}",
    "What are the advantages and disadvantages? {}",
    "Give step-by-step advice for a beginner: {}",
    "Write an email to a colleague about this: {}",
    "What questions should one ask about this? {}",
    "Summarize in three sentences what people should know: {}",
    "Write a short story that has to do with this: {}",
    "Compare how this was done in the past and today: {}",
    "What are common mistakes, and how are they avoided? {}",
    "Write a dialogue between two friends about this: {}",
)
_TOPICS: Final = (
    "growing tomatoes on a balcony", "how a bicycle brake works", "learning a foreign language",
    "saving money for a holiday", "how vaccines work", "preparing for a job interview", "baking bread at home",
    "the water cycle", "sorting a list in Python", "planning a birthday party", "how the stock market works",
    "taking care of a dog", "renewable energy", "writing a good summary", "sleeping better", "the Roman Empire",
    "how computers store numbers", "public transport in cities", "training for a long run", "the planets",
    "reading a map", "working from home", "how laws are made", "playing chess", "recycling plastic",
    "databases and SQL", "first aid for a small burn", "photosynthesis", "giving a presentation", "buying a used car",
    "the history of printing", "cooking with lentils", "how the internet works", "painting a room",
    "dealing with stress", "bees and flowers", "unit tests in software", "fractions and percentages",
    "moving to another city", "the Industrial Revolution",
)  # fmt: skip

PROMPTS: Final = tuple(task.format(topic) for topic in _TOPICS for task in _TASKS)
# Other tasks on other topics, of the same kinds: questions, lists, letters, code.
HELD_OUT: Final = (
    "Why is the sky blue?",
    "Name four rivers in Europe and a city on each.",
    "Write a letter to a neighbour about a noisy party.",
    "Write a Python function that counts vowels.",
    "How does a refrigerator keep food cold?",
    "Plan a weekend trip to the mountains.",
)
