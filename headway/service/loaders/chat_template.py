"""Chat messages to token ids, through the model file's own template.

What a user writes must never become a control token, and all other ids must be those of
the whole rendered text. So control tokens inside the messages are marked before rendering;
afterwards an unmarked one is the template's own and becomes its id, a marked one is plain
text, and each stretch between control tokens is encoded in one piece. The marks are two
lone surrogates, which no valid text holds.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

from jinja2 import TemplateError, TemplateSyntaxError, meta
from jinja2.environment import Template

from headway.core.base.errors import InvalidRequest, ModelFileError
from headway.core.text.tokenizer import Encodes
from headway.service.loaders.chat_messages import Message, normalise
from headway.service.loaders.model_parts import ModelFile, Vocabulary
from headway.service.loaders.template_sandbox import (
    STEPS,
    Steps,
    TemplateEnvironment,
    TemplateRefusal,
    TemplateTooLong,
)
from headway.service.loaders.tokenizer_files import any_of, control_texts

OPEN, CLOSE = "\ud800", "\udfff"  # around a control token written in a message
MARKS = re.compile(f"[{OPEN}{CLOSE}]")
FINAL = "\udbff"  # at the end of a final message that is to be continued
MAX_RENDERED = 1 << 24  # characters
MAX_STEPS = 1 << 23  # of one rendering: some seconds; loops within loops over all messages fit
MAX_STEPS_AT_LOAD = 1 << 18  # of one short message
MAX_ARGUMENT_CHARS = 1024
# What clients send to every model, whether its template knows it or not.
HARMLESS_ARGUMENTS = frozenset({"enable_thinking", "thinking"})
NO_ARGUMENTS: Mapping[str, object] = MappingProxyType({})

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def local_time() -> datetime:
    """The wall clock in the machine's own zone."""
    return datetime.now(tz=UTC).astimezone()


class ChatTemplate:
    """One model's template, compiled; safe to use from several threads at once.

    A file without a template gets ChatML if its vocabulary has ChatML's turn tokens;
    otherwise every chat is refused with a hint to /v1/completions. Raises ModelFileError
    for a template that is not valid Jinja.
    """

    def __init__(self, model_file: ModelFile, now: Callable[[], datetime] = local_time) -> None:
        vocabulary = model_file.vocabulary
        controls = control_texts(vocabulary)
        source = model_file.chat_template
        if source is None and {"<|im_start|>", "<|im_end|>"} <= controls.keys():
            source = CHATML
        self.source = source
        self._name = model_file.card.name
        self._controls: Mapping[str, int] = controls
        self._control_pattern = any_of(controls)
        self._piece_pattern = _pieces(controls)
        self._tails = _tails(controls)
        self._constants = _constants(vocabulary)
        self._strip = vocabulary.stripped
        self._template = None if source is None else _compile(model_file.path, source, now)
        self.arguments = frozenset(_arguments(source, now, self._constants))
        self._try_out(model_file.path)

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        tokenizer: Encodes,
        *,
        add_generation_prompt: bool,
        continue_final: bool = False,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int]:
        """Ids of the rendered chat, with exactly one BOS if the tokenizer adds one.

        With `continue_final` they end with the last message's own text, its turn left open.
        `arguments` are variables that the template reads, see `self.arguments`. Raises
        InvalidRequest, with the message's index, for messages that cannot be rendered;
        UnsupportedModality for parts that are not text.
        """
        marked = self._render_marked(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final=continue_final,
            arguments=self._checked(arguments),
        )
        ids: list[int] = []
        for text, control in self._stripped(self._segments(marked)):
            if control is not None:
                ids.append(control)
            else:
                ids += tokenizer.encode(text, add_special=False, parse_special=False)
        bos = tokenizer.encode("", add_special=True, parse_special=False)
        return ids if ids[: len(bos)] == bos else bos + ids

    def render(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool
    ) -> str:
        """The rendered text, for showing; encoding it again is not safe."""
        marked = self._render_marked(messages, add_generation_prompt=add_generation_prompt)
        return MARKS.sub("", marked)

    def _try_out(self, path: str) -> None:
        """Raise ModelFileError for a template that would not come to an end in time."""
        if self._template is None:
            return
        message: Message = {"role": "user", "content": "Hi"}
        try:
            self._run(self._template, [message], _turn(True), MAX_STEPS_AT_LOAD)
        except TemplateTooLong:
            raise ModelFileError(
                path,
                "its chat template loops: one short message takes more than "
                f"{MAX_STEPS_AT_LOAD} steps; use another file, or mend the template",
            ) from None
        except InvalidRequest:  # it may want other messages
            return

    def _checked(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """Those that the template reads; their values are what a switch or a name may be."""
        param = "chat_template_kwargs"
        for name, value in arguments.items():
            if name not in self.arguments | HARMLESS_ARGUMENTS:
                known = ", ".join(sorted(self.arguments)) or "none"
                raise InvalidRequest(
                    f"'{param}' has a name that this model's template does not take; it takes: "
                    f"{known}",
                    param=param,
                )
            if not isinstance(value, str | int | float | None):
                raise InvalidRequest(
                    f"'{param}.{name}' must be true, false, a number or a text",
                    param=f"{param}.{name}",
                )
            if isinstance(value, str) and len(value) > MAX_ARGUMENT_CHARS:
                raise InvalidRequest(
                    f"'{param}.{name}' has {len(value)} characters; at most "
                    f"{MAX_ARGUMENT_CHARS} are accepted",
                    param=f"{param}.{name}",
                )
        return {name: self._mark(arguments[name]) for name in arguments.keys() & self.arguments}

    def _render_marked(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        continue_final: bool = False,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> str:
        source, template = self.source, self._template
        if source is None or template is None:
            raise InvalidRequest(
                f"the model {self._name} has no chat template, so it takes no messages; send a "
                "prompt to /v1/completions instead",
                param="messages",
            )
        plain = normalise(messages, knows_developer="developer" in source)
        marked: list[Message] = [
            {key: self._mark(value) for key, value in message.items()} for message in plain
        ]
        for before, after in zip(plain, marked, strict=True):
            after["role"] = before["role"]  # already one of a fixed list
        if continue_final:
            marked[-1]["content"] = f"{marked[-1]['content']}{FINAL}"
        variables = {**arguments, **_turn(add_generation_prompt)}
        try:
            text = self._run(template, marked, variables, MAX_STEPS)
        except TemplateTooLong:
            raise InvalidRequest(
                "the model's chat template takes too long for these messages; send fewer of them",
                param="messages",
            ) from None
        if not continue_final:
            return text
        kept, *rest = text.split(FINAL)
        if len(rest) != 1:
            raise InvalidRequest(
                "the model's chat template does not end with the last message as it was sent, so "
                "that message cannot be continued",
                param="continue_final_message",
            )
        return kept

    def _mark(self, value: object) -> object:
        """The same value with every control token in its texts between marks."""
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, Mapping):
            return {self._mark_text(str(key)): self._mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._mark(item) for item in value]
        return value

    def _mark_text(self, text: str) -> str:
        if self._control_pattern is None:
            return text
        marked = self._control_pattern.sub(rf"{OPEN}\1{CLOSE}", text)
        # A text that ends in the beginning of a control token must not be completed by
        # what follows it in the rendered chat.
        return marked + CLOSE if marked.endswith(self._tails) else marked

    def _run(
        self,
        template: Template,
        messages: list[Message],
        arguments: Mapping[str, object],
        most_steps: int,
    ) -> str:
        """The rendered text; raises InvalidRequest, and TemplateTooLong."""
        parts: list[str] = []
        length = 0
        try:
            for part in template.generate(
                messages=messages,
                tools=None,
                documents=None,
                **self._constants,
                **arguments,
                **{STEPS: Steps(most_steps)},
            ):
                length += len(part)
                if length > MAX_RENDERED:
                    raise InvalidRequest(
                        f"the rendered chat is longer than {MAX_RENDERED} characters",
                        param="messages",
                    )
                parts.append(part)
        except TemplateRefusal as refusal:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {MARKS.sub('', str(refusal))}",
                param="messages",
            ) from None
        except TemplateTooLong:
            raise
        except (
            TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError,
            RecursionError, TypeError, ValueError,
        ) as error:  # fmt: skip
            raise InvalidRequest(
                "the model's chat template cannot render these messages", param="messages"
            ) from error
        return "".join(parts)

    def _segments(self, marked: str) -> list[tuple[str, bool]]:
        """Stretches of plain text and the template's own control tokens, in order."""
        segments: list[tuple[str, bool]] = []
        plain: list[str] = []
        # The pattern has one group, so odd pieces are what it found.
        for index, piece in enumerate(self._piece_pattern.split(marked)):
            if index % 2 == 0 or piece[0] in (OPEN, CLOSE):
                plain.append(MARKS.sub("", piece))
                continue
            segments += [("".join(plain), False), (piece, True)]
            plain = []
        segments.append(("".join(plain), False))
        return [(text, is_control) for text, is_control in segments if text]

    def _stripped(self, segments: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, int | None]]:
        """The same with ids of control tokens, without the white space that those take."""
        ids = [self._controls[text] if is_control else None for text, is_control in segments]
        for index, (text, is_control) in enumerate(segments):
            if is_control:
                yield text, ids[index]
                continue
            before = ids[index - 1] if index else None
            after = ids[index + 1] if index + 1 < len(ids) else None
            if kept := self._strip(text, before, after):
                yield kept, None


def _pieces(controls: Mapping[str, int]) -> re.Pattern[str]:
    """Finds marked control tokens, lone marks and control tokens, in that order."""
    own = any_of(controls)
    found = own.pattern[1:-1] if own else "(?!)"
    return re.compile(f"({OPEN}(?:{found}){CLOSE}|[{OPEN}{CLOSE}]|{found})")


def _tails(controls: Mapping[str, int]) -> tuple[str, ...]:
    return tuple({text[:end] for text in controls for end in range(1, len(text))})


def _turn(add_generation_prompt: bool) -> dict[str, object]:
    return {"add_generation_prompt": add_generation_prompt}


def _arguments(
    source: str | None, now: Callable[[], datetime], constants: Mapping[str, str]
) -> set[str]:
    """Variables that a template reads and that nobody but a request could set."""
    if source is None:
        return set()
    environment = TemplateEnvironment(now)
    found = meta.find_undeclared_variables(environment.parse(source))
    own = {"messages", "tools", "documents", "add_generation_prompt", STEPS, *constants}
    return found - own - environment.globals.keys()


def _constants(vocabulary: Vocabulary) -> dict[str, str]:
    ids = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
        "pad_token": vocabulary.pad_id,
        "unk_token": vocabulary.unknown_id,
    }
    return {name: vocabulary.text_of(token_id) for name, token_id in ids.items()}


def _compile(path: str, source: str, now: Callable[[], datetime]) -> Template:
    try:
        return TemplateEnvironment(now).from_string(source)
    except TemplateSyntaxError as error:
        problem = f"line {error.lineno}: {error.message}"
    except (SyntaxError, ArithmeticError, MemoryError, RecursionError, ValueError) as error:
        problem = str(error) or "it is nested too deeply"
    raise ModelFileError(
        path, f"metadata 'tokenizer.chat_template' is not a valid template: {problem}"
    )
