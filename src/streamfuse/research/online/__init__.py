"""Online speculative decoding (Liu et al., 2023, arXiv 2310.07177): what drafts learns from what was rejected.

While answers are written, the places where a draft was rejected go to a buffer, with the target's distributions that
the verifying passes gave (`notes`). Every few answers what drafts is distilled on them (`learner`), and its exported
program gets the new weights by `research/replaced.py`. Two kinds of drafter learn so: a small model of its own
(`draft_model`, the paper's) and the streams of the target (`streams`, ours). The target's weights never change, so
neither does any text.
"""

from streamfuse.research.online.draft_model import DraftModelStudent
from streamfuse.research.online.learner import Learner, Schedule, Student
from streamfuse.research.online.notes import GREEDY, Buffer, Noted, Rejection, Watch
from streamfuse.research.online.streams import StreamsStudent

__all__ = [
    "GREEDY",
    "Buffer",
    "DraftModelStudent",
    "Learner",
    "Noted",
    "Rejection",
    "Schedule",
    "StreamsStudent",
    "Student",
    "Watch",
]
