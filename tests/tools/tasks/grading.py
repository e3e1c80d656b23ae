"""Grades answers for the tasks beside it, with the grader of the model's training."""
import os
import re
import sys

ROOT = os.environ["WINNOW_SOURCE"]
sys.path.insert(0, os.path.join(ROOT, "tools", "train"))
import skills  # noqa: E402


class Asked:
    def __init__(self, doc):
        k = doc["answer_key"]
        self.how = doc["how"]
        self.answer_key = re.compile(k["pattern"], k["flags"]) if isinstance(k, dict) and "pattern" in k else k


def graded(doc, answer):
    import json

    key = json.loads(doc["key"])
    return float(skills.correct(Asked({"how": doc["how"], "answer_key": key}), answer))


def of_text(doc, results):
    return {"same": float(results[0] == doc["reference"]), "correct": graded(doc, results[0])}


def of_answer(doc, results):
    return {"same": float(results[0] == doc["reference"]), "correct": graded(doc, "</think>" + results[0])}
