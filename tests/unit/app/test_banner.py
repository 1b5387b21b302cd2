"""What `headway serve` prints once it answers."""

from headway.app.banner import banner

URL = "http://127.0.0.1:8000"


def test_the_request_to_try_needs_nothing_where_everybody_may_ask() -> None:
    shown = banner(URL, [], 1.0)
    assert f"curl {URL}/v1/chat/completions -H 'Content-Type" in shown
    assert "Authorization" not in shown


def test_the_request_to_try_has_a_place_for_a_key_where_one_is_needed() -> None:
    shown = banner(URL, [], 1.0, [("qwen3", "2 of 2 servers answer, vllm")], needs_key=True)
    assert f'curl {URL}/v1/chat/completions -H "Authorization: Bearer $KEY" -H' in shown
    assert "model       qwen3 (2 of 2 servers answer, vllm)" in shown
