"""What can be seen of a prompt at a glance: its length, marks of code and of mathematics, cues.

Only the beginning and the end of a long prompt are read, where what is asked usually stands, so
that the time does not grow with it. English and Chinese cues are known; other languages are judged
by length, code, mathematics and form alone.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

HEAD_CHARS, TAIL_CHARS = 1200, 600


class Prompt(NamedTuple):
    """What is looked at."""

    text: str  # of the last user message, or the whole prompt of a completion
    num_chars: int  # of all messages together
    max_tokens: int | None = None  # that the answer may have


CODE = re.compile(
    r"```|\bdef \w+\(|\bclass \w+|\bfunction\b|\bimport \w+|#include|\breturn\b|=>|->|\{\s*$"
    r"|;\s*$|\bSELECT\b.{1,300}\bFROM\b|\b\w+\(\w*\)|\bTraceback\b|==|!=|\[\d+\]|</\w+>|\$ \w+",
    re.MULTILINE,
)
CODE_WORDS = re.compile(
    r"\b(?:python|java|javascript|typescript|rust|golang|c\+\+|sql|regex|bash|shell script|api"
    r"|function|algorithm|compiler|thread|deadlock|unit tests?|stack trace|bug|refactor)\b"
    r"|函数|代码|算法|编译|线程|死锁|单元测试|正则|接口|程序",
    re.IGNORECASE,
)
MATH = re.compile(
    r"\\(?:frac|sum|int|sqrt|lim|begin)|\$[^$\n]{1,80}\$|\b\d+\s*[-+*/^×÷]\s*\d+|[∑∫√≤≥≠∞∀∃∈πθλ]"
    r"|\b(?:theorem|lemma|integral|derivative|eigenvalues?|matrix|probability|polynomial|equations?"
    r"|converges?|modulo|prime|expected value|random variables?|sequence|inequality)\b"
    r"|定理|引理|积分|导数|矩阵|概率|多项式|方程|收敛|质数|素数|数列|不等式|期望|特征值",
    re.IGNORECASE,
)
FACT = re.compile(
    r"^\W*(?:what(?:'s| is| are| was)|who|when|where|which|how (?:many|much|old|tall|far|long)"
    r"|is|are|does|do|did|can|name|spell|define|translate|convert|classify|label|pick)\b"
    r"|是什么|是谁|什么时候|在哪|哪个|哪一|多少|几个|是不是|是否|翻译|换算|分类|属于",
    re.IGNORECASE,
)
SHORT_ANSWER = re.compile(
    r"\b(?:one word|single word|yes or no|true or false|only (?:the|with)|just the|briefly|in short"
    r"|short answer|one sentence|a number|answer with|reply with|synonym|opposite|label)\b"
    r"|一个词|一句话|只回答|只输出|只写|只给|只要|简短|是或否|对还是错|一个数字|标签|近义词|反义词",
    re.IGNORECASE,
)
LONG_ANSWER = re.compile(
    r"\b(?:detailed|in[- ]depth|comprehensive|thorough\w*|complete|full|rigorous\w*|carefully"
    r"|production|end[- ]to[- ]end|from scratch|at least \w+|every|all (?:the )?(?:cases|steps))\b"
    r"|详细|全面|完整|深入|严格|系统地|逐一|从零|不少于|所有情况|生产环境",
    re.IGNORECASE,
)
REASONING = re.compile(
    r"\b(?:prove|proof|derive|justify|why|analy[sz]e|analysis|evaluate|compare|contrast|trade-?offs?"
    r"|design|architect\w*|debug|diagnose|root cause|optimi[sz]e|plan|strategy|reason\w*|deduce"
    r"|step[- ]by[- ]step|argue|critique|implications?|counterexample|complexity|constraints?"
    r"|assumptions?|edge cases?|race condition|scenario|quantify|model)\b"
    r"|证明|推导|论证|为什么|分析|评估|比较|对比|权衡|设计|架构|调试|诊断|根本原因|优化|规划|策略|推理"
    r"|逐步|批判|反例|复杂度|约束|假设|边界情况|量化|建模|方案",
    re.IGNORECASE,
)
WRITING = re.compile(
    r"\b(?:write|draft|compose|summari[sz]e|summary|rewrite|rephrase|paraphrase|explain|describe"
    r"|outline|e-?mail|letter|paragraphs?|bullets?|list|tips|post|caption|story|poem|recipe|advice"
    r"|extract|table|suggest|recommend|introduction|announcement)\b"
    r"|写一|撰写|起草|总结|概括|摘要|改写|润色|解释|说明|描述|大纲|邮件|信|段落|要点|列出|列举|建议|推荐"
    r"|故事|诗|菜谱|提取|表格|介绍|通知",
    re.IGNORECASE,
)
STEPS = re.compile(
    r"^[^\S\n]*(?:\d+[.)、]|[-*•]|\([a-z]\))\s*\S|\b(?:first|then|next|finally|also|as well as"
    r"|including|followed by|must|should|ensure)\b"
    r"|首先|然后|接着|最后|同时|并且|另外|包括|必须|要求|确保|以及",
    re.IGNORECASE | re.MULTILINE,
)
SENTENCE = re.compile(r"[.!?。！？；;\n]+")
CJK = re.compile(r"[\u3400-\u9fff]")
DIGITS = re.compile(r"\d")
QUOTED = re.compile(r"\n\s*\n|\"\"\"|:\s*\n|：\s*\n")

NAMES = (
    *("length", "instruction_length", "code", "code_words", "math", "fact", "short_answer"),
    *("long_answer", "reasoning", "writing", "steps", "sentences", "cjk", "digits", "quoted"),
)


def looked_at(text: str, head: int = HEAD_CHARS, tail: int = TAIL_CHARS) -> str:
    """The beginning and the end of a text."""
    return text if len(text) <= head + tail else f"{text[:head]}\n{text[-tail:]}"


def features(prompt: Prompt) -> tuple[float, ...]:
    """One number from 0 to about 1 a name of NAMES."""
    text = looked_at(prompt.text)
    seen = max(1, len(text))
    cjk = _count(CJK, text)
    # A Chinese character says about as much as two letters and a half.
    length = prompt.num_chars + 1.5 * cjk * (len(prompt.text) / seen)
    first = SENTENCE.split(text.strip(), maxsplit=1)[0]
    return (
        min(1.0, math.log2(1.0 + length) / 16.0),
        min(1.0, math.log2(1.0 + len(first) + 1.5 * _count(CJK, first)) / 10.0),
        _share(_count(CODE, text), 8),
        _share(_count(CODE_WORDS, text), 4),
        _share(_count(MATH, text), 4),
        float(bool(FACT.search(text[:200]))),
        _share(_count(SHORT_ANSWER, text), 1),
        _share(_count(LONG_ANSWER, text), 3),
        _share(_count(REASONING, text), 4),
        _share(_count(WRITING, text), 3),
        _share(_count(STEPS, text), 6),
        min(1.0, math.log2(1.0 + len([s for s in SENTENCE.split(text) if s.strip()])) / 6.0),
        cjk / seen,
        min(1.0, 5.0 * _count(DIGITS, text) / seen),
        _share(_count(QUOTED, text), 2),
    )


def score(values: Sequence[float]) -> float:
    """Points of a prompt, readable: 0 for a fact in one line, 10 and more for a hard task."""
    seen = dict(zip(NAMES, values, strict=True))
    points = (
        4.0 * max(0.0, seen["length"] - 0.3)
        + 4.0 * seen["reasoning"]
        + 2.5 * seen["writing"]
        + 3.0 * seen["math"]
        + 2.0 * seen["code"]
        + 2.0 * seen["code_words"]
        + 2.0 * seen["long_answer"]
        + 2.0 * seen["steps"]
        + 2.0 * max(0.0, seen["sentences"] - 0.2)
    )
    return max(0.0, points - 2.0 * seen["short_answer"] - 1.0 * seen["fact"])


def _count(pattern: re.Pattern[str], text: str) -> int:
    return len(pattern.findall(text))


def _share(count: int, full: int) -> float:
    return min(1.0, count / full)
