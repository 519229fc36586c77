"""A greeting asks for nothing, in whatever language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sessions.greetings import find_request_end, says_something

GREETINGS = [
    "Hi",
    "hi!",
    "Hello",
    "Hello, can you help me?",
    "hey there 👋",
    "Hiii",
    "Good morning",
    "Hi, I have a question.",
    "Hello?",
    "Hi there, how are you today?",
    "I need some help please",
    "Can you assist me with something?",
    "Hallo",
    "Guten Tag, können Sie mir helfen?",
    "Moin",
    "Hola, ¿me puedes ayudar?",
    "Buenos días",
    "Bonjour, j'ai une question",
    "Salut ! Ça va ?",
    "Ciao",
    "Buongiorno, ho bisogno di aiuto",
    "Olá, tudo bem?",
    "Oi",
    "Hoi, ik heb een vraag",
    "Hej",
    "Dzień dobry",
    "Dobrý den, mám dotaz",
    "Привет",
    "Здравствуйте, можете мне помочь?",
    "Szia",
    "Bună ziua",
    "Γεια σας",
    "Xin chào",
    "Halo, apa kabar?",
    "مرحبا",
    "السلام عليكم",
    "שלום",
    "नमस्ते",
    "你好",
    "您好,请问在吗?",
    "你好，可以帮我一个忙吗？",
    "こんにちは",
    "すみません、質問があります",
    "안녕하세요",
    "สวัสดีครับ",
    "",
    "👋",
    "?",
    "...",
]
REQUESTS = [
    "Hi, cancel my booking",
    "Hello, where is order 12?",
    "12",
    "Cancel it",
    "Weather in Oslo",
    "Hallo, wo ist mein Paket?",
    "Hola, quiero cancelar la reserva",
    "Bonjour, annulez ma commande",
    "你好，我要退款",
    "こんにちは、注文をキャンセルしたい",
    "안녕하세요 환불",
    "Привет, отмените заказ",
    "yes W-4711",
    "refund",
    "Reset my password please",
]


@pytest.mark.parametrize("text", GREETINGS)
def test_a_greeting_says_nothing(text):
    assert not says_something(text)


@pytest.mark.parametrize("text", REQUESTS)
def test_a_request_says_something(text):
    assert says_something(text)


@given(st.lists(st.sampled_from(GREETINGS), max_size=3), st.integers(10, 99999))
def test_greetings_together_say_nothing_and_a_number_says_something(texts, number):
    assert not says_something(" ".join(texts)[:200])
    assert says_something(" ".join([*texts, str(number)]))


def test_the_request_is_the_first_message_that_says_something():
    messages = [
        {"role": role, "content": text}
        for role, text in (("user", "Hi"), ("assistant", "Hello!"), ("user", "Cancel B2"))
    ]
    assert find_request_end(messages) == 3
    assert find_request_end(messages[:2]) is None
