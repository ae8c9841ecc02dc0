"""The order in which the host takes facts up, and what its time is spent on."""

from __future__ import annotations

from stepahead_models.facts import FactClass, Facts
from stepahead_models.timelines import Timelines


def test_facts_of_one_instant_come_by_class_then_as_they_became_known() -> None:
    """A cancel goes before everything, a prepared batch before an executed one."""
    facts = Facts()
    for subject, kind in enumerate(reversed(FactClass)):
        facts.add(10, kind, subject)
    facts.add(10, FactClass.CANCEL, 99)
    taken = [facts.take(10) for _ in range(7)]
    assert taken == [
        (10, FactClass.CANCEL, 5),
        (10, FactClass.CANCEL, 99),
        (10, FactClass.TRANSFER, 4),
        (10, FactClass.PREPARED, 3),
        (10, FactClass.EXECUTED, 2),
        (10, FactClass.ARRIVAL, 1),
        (10, FactClass.WOKE, 0),
    ]
    assert not facts.any()


def test_facts_that_occur_while_the_host_works_are_delivered_when_it_is_done() -> None:
    """At 50 the host is free; what occurred until then competes by class, not by time."""
    facts = Facts()
    facts.add(10, FactClass.ARRIVAL, 1)
    facts.add(20, FactClass.EXECUTED, 2)
    facts.add(51, FactClass.CANCEL, 3)
    assert facts.any_by(50)
    assert facts.take(50) == (50, FactClass.EXECUTED, 2)
    assert facts.take(50) == (50, FactClass.ARRIVAL, 1)
    assert not facts.any_by(50)
    assert facts.next_at() == 51
    assert facts.take(50) == (51, FactClass.CANCEL, 3)


def test_a_fact_is_there_by_a_time_if_it_waits_or_occurs_by_then() -> None:
    """What comes later stays; what waits is there although something earlier has been taken."""
    facts = Facts()
    assert not facts.any_by(100)
    facts.add(10, FactClass.ARRIVAL, 1)
    facts.add(10, FactClass.PREPARED, 2)
    facts.add(30, FactClass.CANCEL, 3)
    assert not facts.any_by(9)
    assert facts.any_by(10)
    assert facts.take(10) == (10, FactClass.PREPARED, 2)
    assert facts.any_by(0)
    assert facts.take(10) == (10, FactClass.ARRIVAL, 1)
    assert not facts.any_by(29)
    assert facts.any()
    assert facts.take(29) == (30, FactClass.CANCEL, 3)


def test_a_fact_is_taken_however_late() -> None:
    """Who arrives at the end of what a trace may hold is served after it."""
    facts = Facts()
    facts.add(2**63 - 1, FactClass.EXECUTED, 1)
    assert facts.take(0) == (2**63 - 1, FactClass.EXECUTED, 1)


def test_host_work_under_a_device_step_is_hidden() -> None:
    """Of three jobs of 10, the step covers half of the second and all but 2 of the third."""
    time = Timelines()
    time.work(10)
    assert time.run_npu(13) == (10, 23)
    time.work(5)
    assert time.work(10) == 25
    assert time.cpu_busy_ns == 25
    assert time.cpu_hidden_ns == 13
