"""Free JSON: objects of many shapes that a model invents; nothing is right or wrong about them but their schema."""

from __future__ import annotations

from typing import Any

from .questions import Constraint, Question, object_of, user


def _text(most: int = 60, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, **more}


def _integer(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _one_of(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


def _list(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


_NUMBER: dict[str, Any] = {"type": "number"}
_YES_OR_NO: dict[str, Any] = {"type": "boolean"}
_DATE = _text(10, format="date")
_ADDRESS = object_of(
    {"street": _text(40), "city": _text(30), "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"}}
)

PROMPTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "Invent a person who works in a bakery.",
        object_of({"name": _text(30), "age": _integer(18, 80), "email": _text(40), "hobbies": _list(_text(20), 1, 3)}),
    ),
    (
        "Write a recipe for pancakes.",
        object_of(
            {
                "title": _text(40),
                "minutes": _integer(1, 120),
                "ingredients": _list(
                    object_of(
                        {"name": _text(30), "amount": _NUMBER, "unit": _one_of("g", "ml", "piece", "tablespoon")}
                    ),
                    2,
                    5,
                ),
                "steps": _list(_text(80), 2, 4),
            }
        ),
    ),
    (
        "Give me the weather forecast for the next three days in Oslo.",
        object_of(
            {
                "city": {"const": "Oslo"},
                "unit": _one_of("celsius", "fahrenheit"),
                "days": _list(
                    object_of(
                        {
                            "day": _one_of("Friday", "Saturday", "Sunday"),
                            "low": _integer(-40, 50),
                            "high": _integer(-40, 50),
                            "sky": _one_of("clear", "cloudy", "rain", "snow"),
                        }
                    ),
                    3,
                    3,
                ),
            }
        ),
    ),
    (
        "Plan a meeting of the design team.",
        object_of(
            {
                "subject": _text(50),
                "date": _DATE,
                "start": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
                "minutes": _one_of(15, 30, 45, 60, 90),
                "participants": _list(_text(25), 2, 5),
                "online": _YES_OR_NO,
            }
        ),
    ),
    (
        "Review the novel Frankenstein by Mary Shelley.",
        object_of(
            {
                "title": _text(40),
                "author": _text(40),
                "year": _integer(1500, 2030),
                "stars": _integer(1, 5),
                "pros": _list(_text(60), 1, 3),
                "cons": _list(_text(60), 0, 2),
            }
        ),
    ),
    (
        "What is the sentiment of: 'The phone is fast, but its battery lasts for three hours only.'",
        object_of({"sentiment": _one_of("positive", "negative", "mixed", "neutral"), "reason": _text(100)}),
    ),
    (
        "Make a quiz question about the solar system.",
        object_of(
            {
                "question": _text(100),
                "choices": _list(_text(30), 4, 4),
                "correct": _integer(0, 3),
                "difficulty": _one_of("easy", "medium", "hard"),
            }
        ),
    ),
    (
        "Write an invoice for three office chairs and a desk.",
        object_of(
            {
                "number": {"type": "string", "pattern": "^INV-[0-9]{4}$"},
                "customer": object_of({"name": _text(30), "address": _ADDRESS}),
                "items": _list(
                    object_of({"description": _text(30), "quantity": _integer(1, 100), "price": _NUMBER}), 2, 3
                ),
                "currency": _one_of("EUR", "USD", "GBP"),
                "paid": _YES_OR_NO,
            }
        ),
    ),
    (
        "Turn this into a to-do list: buy milk, call the dentist before Friday, finish the report today.",
        object_of(
            {
                "tasks": _list(
                    object_of({"task": _text(50), "priority": _one_of("low", "medium", "high"), "done": _YES_OR_NO}),
                    3,
                    3,
                )
            }
        ),
    ),
    (
        "Set the lights: the living room warm and dim, the kitchen bright.",
        _list(
            object_of(
                {
                    "room": _one_of("living room", "kitchen", "bedroom"),
                    "on": _YES_OR_NO,
                    "brightness": _integer(0, 100),
                    "color": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
                }
            ),
            1,
            3,
        ),
    ),
    (
        "Describe the country Portugal.",
        object_of(
            {
                "country": _text(30),
                "capital": _text(30),
                "continent": _one_of("Africa", "America", "Asia", "Europe", "Oceania"),
                "population": _integer(0, 2_000_000_000),
                "languages": _list(_text(20), 1, 3),
                "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
                "neighbours": _list(_text(20), 0, 5),
            }
        ),
    ),
    (
        "Draw a house of simple shapes on a canvas of 100 by 100.",
        object_of(
            {
                "shapes": _list(
                    {
                        "anyOf": [
                            object_of(
                                {
                                    "kind": {"const": "circle"},
                                    "x": _integer(0, 100),
                                    "y": _integer(0, 100),
                                    "radius": _integer(1, 50),
                                }
                            ),
                            object_of(
                                {
                                    "kind": {"const": "rectangle"},
                                    "x": _integer(0, 100),
                                    "y": _integer(0, 100),
                                    "width": _integer(1, 100),
                                    "height": _integer(1, 100),
                                }
                            ),
                        ]
                    },
                    2,
                    4,
                )
            }
        ),
    ),
    (
        "Which films should I watch if I like space and robots?",
        _list(object_of({"title": _text(40), "year": _integer(1900, 2030), "genres": _list(_text(20), 1, 2)}), 2, 3),
    ),
    (
        "Correct the spelling: 'I recieve alot of mesages evry day.'",
        object_of(
            {
                "corrected": _text(80),
                "mistakes": _list(object_of({"wrong": _text(20), "right": _text(20)}), 1, 4),
            }
        ),
    ),
    (
        "Sort this ticket: 'I was charged twice for my order 4711 and want my money back.'",
        object_of(
            {
                "category": _one_of("billing", "delivery", "technical", "other"),
                "urgent": _YES_OR_NO,
                "order": {"anyOf": [_integer(1, 999_999), {"type": "null"}]},
                "summary": _text(80),
                "next_step": _one_of("refund", "replace", "call back", "close"),
            }
        ),
    ),
    (
        "Create a profile for a new player in a fantasy game.",
        object_of(
            {
                "name": _text(20),
                "class": _one_of("warrior", "wizard", "thief", "healer"),
                "level": {"const": 1},
                "abilities": object_of(
                    {name: _integer(1, 20) for name in ("strength", "dexterity", "constitution", "wisdom", "charisma")}
                ),
                "inventory": _list(object_of({"item": _text(20), "weight": _NUMBER}), 1, 3),
                "motto": {"anyOf": [_text(60), {"type": "null"}]},
            }
        ),
    ),
)


def read_questions(source: str = "", split: str = "") -> list[Question]:
    """All questions; there is no file of them."""
    return [Question((user(prompt),), Constraint.schema(schema)) for prompt, schema in PROMPTS]
