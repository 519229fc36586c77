"""The simulated worlds: their tools really run."""

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sample.office.world import ROOMS, Office, slot
from agent_pipeline.sample.shop.world import Shop, line, order, read_line
from agent_pipeline.sample.world import Call

ORDERS = {
    "K100": order("K100", "Ana Hill", "mug", 3, 20, "open"),
    "K200": order("K200", "Ana Hill", "lamp", 1, 40, "delivered", 12),
}


def test_looking_up_orders_shows_them_and_changes_nothing():
    shop = Shop(ORDERS)
    assert shop.run(Call("find_orders", {"query": "K200"})) == {
        "K200": "1 x lamp at $40, delivered 12 days ago"
    }
    assert list(shop.run(Call("find_orders", {"query": "Ana Hill"}))) == ["K100", "K200"]
    assert shop.run(Call("find_orders", {"query": "K999"})) == {}
    assert shop.records == ORDERS


def test_refunds_add_up_and_cancelling_sets_the_status():
    shop = Shop(ORDERS)
    for amount in (20, 40):
        assert shop.run(Call("refund", {"order": "K100", "amount": amount})) == {"ok": True}
    assert shop.records["K100"]["refunded"] == 60
    assert shop.run(Call("cancel", {"order": "K100"})) == {"ok": True}
    assert shop.records["K100"]["status"] == "cancelled"


def test_one_session_does_not_see_what_another_changed():
    Shop(ORDERS).run(Call("cancel", {"order": "K100"}))
    assert Shop(ORDERS).records["K100"]["status"] == "open"


def test_impossible_calls_are_errors_and_change_nothing():
    shop = Shop(ORDERS)
    calls = [
        Call("refund", {"order": "K999", "amount": 1}),
        Call("refund", {"order": "K100"}),
        Call("explode", {}),
        Call("line", {}),
    ]
    assert all("error" in shop.run(call) for call in calls)
    assert shop.records == ORDERS


def test_a_booked_room_is_no_longer_free_until_it_is_given_back():
    office, when = Office({}), {"day": "03-09", "hour": 14}
    assert office.run(Call("free_rooms", when)) == ROOMS
    assert office.run(Call("book", {"room": "Fir", **when})) == {"ok": True}
    assert "Fir" not in office.run(Call("free_rooms", when))
    assert office.run(Call("book", {"room": "Fir", **when})) == {"error": "taken"}
    assert office.run(Call("cancel", {"room": "Fir", **when})) == {"ok": True}
    assert office.run(Call("free_rooms", when)) == ROOMS


def test_a_stranger_s_booking_cannot_be_cancelled():
    start = {slot("Oak", "03-09", 9): {"room": "Oak", "day": "03-09", "hour": 9, "by": "other"}}
    office = Office(start)
    assert "error" in office.run(Call("cancel", {"room": "Oak", "day": "03-09", "hour": 9}))
    assert office.records == start


@given(
    st.from_regex(r"[a-z]+( [a-z]+)?", fullmatch=True),
    st.integers(1, 9),
    st.integers(1, 999),
    st.sampled_from(["open", "shipped", "delivered"]),
    st.integers(0, 99),
)
def test_an_agent_reads_in_a_line_what_the_world_wrote(item, units, price, status, days):
    record = order("K100", "", item, units, price, status, days)
    assert read_line("K100", line(record)) == record
