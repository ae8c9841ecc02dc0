"""A pytest plugin: ``pytest -p stepahead_specs.conformance.plugin --stepahead-adapter M:FACTORY``.

Without further arguments it runs the kit and nothing else; with paths it adds the kit to the tests
found there. It adds one test per exhaustive plan and one random search, and prints the page of
results at the end. It is loaded by name alone, so that an installed stepahead changes nobody's
pytest.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from stepahead_specs.conformance.adapter import Factory
from stepahead_specs.conformance.bounds import Bounds, Failure, Tally
from stepahead_specs.conformance.exhaustive import Explored, Plan, explore, plans
from stepahead_specs.conformance.machine import AdapterMachine, machine
from stepahead_specs.conformance.page import page
from stepahead_specs.conformance.parts import together
from stepahead_specs.counting import counted

_STEPS: Final = 30
_FAILURES: Final = pytest.StashKey[list[Failure]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options."""
    group = parser.getgroup("stepahead", "conformance of a scheduler")
    group.addoption(
        "--stepahead-adapter",
        metavar="MODULE:FACTORY",
        help="Test the scheduler that FACTORY(limits) makes.",
    )
    group.addoption(
        "--stepahead-runs",
        type=int,
        default=3000,
        metavar="N",
        help="Runs per exhaustive plan at most. Default: 3000.",
    )
    group.addoption(
        "--stepahead-examples",
        type=int,
        default=200,
        metavar="N",
        help="Examples of the random search. Default: 200.",
    )
    group.addoption(
        "--stepahead-history",
        type=Path,
        default=None,
        metavar="FILE",
        help="Write a failing run as a history, for `stepahead check`.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect nothing but the kit where nothing else was asked for."""
    if config.option.stepahead_adapter is None:
        return
    config.pluginmanager.register(Kit(config), "stepahead-conformance")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


def factory_named(name: str) -> Factory:
    """Import ``module:factory``.

    Raises:
        pytest.UsageError: there is no such thing.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise pytest.UsageError(f"--stepahead-adapter={name} is not MODULE:FACTORY")
    sys.path.insert(0, "")  # as `python -m pytest` does, so that an adapter beside you is found
    try:
        found: Factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--stepahead-adapter={name}: {error}") from error
    return found


class Kit:
    """The tests of one scheduler and what they have found."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.factory = factory_named(config.option.stepahead_adapter)
        self.bounds: Bounds = getattr(self.factory, "bounds", Bounds())
        self.machine: type[AdapterMachine] = machine(self.factory, self.bounds)
        self.explored: list[Explored] = []
        self.failures: list[Failure] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Add the tests of the kit."""
        for plan in plans(self.bounds):
            items.append(ExhaustiveItem.of(session, self, plan))
        items.append(RandomItem.of(session, self))

    def failed(self, failure: Failure) -> None:
        """Keep a failing run, in a file too if one was asked for."""
        self.failures.append(failure)
        path: Path | None = self.config.option.stepahead_history
        if path is not None:
            failure.write(path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the page."""
        terminalreporter.section("stepahead conformance")
        terminalreporter.write(self.page())

    def page(self) -> str:
        """Return the page of results."""
        tallies = [*(explored.tally for explored in self.explored), self.machine.tally]
        goals: Counter[str] = Counter()
        for tally in tallies:
            goals.update(tally.goals)
        scopes = [scope for tally in tallies for scope in tally.scopes]
        return page(
            self._scheduler(),
            self._verdict(),
            [*(str(explored) for explored in self.explored), *self._random()],
            together(scopes) if scopes else None,
            goals,
            driven=True,
        )

    def _scheduler(self) -> str:
        if self.failures:
            return self.failures[0].opened.scheduler
        return str(self.config.option.stepahead_adapter)

    def _verdict(self) -> str:
        if self.failures:
            last = str(self.failures[-1].error).partition("\n")[0]
            return f"FAILED: {last}"
        unfinished = [explored for explored in self.explored if not explored.complete]
        if unfinished or not self.machine.tally.runs or not self.explored:
            return "Nothing was found, but not everything was run."
        return "Nothing was found: complete within the bounds named below, sampled beyond them."

    def _random(self) -> Iterator[str]:
        tally: Tally = self.machine.tally
        if tally.runs:
            yield (
                f"random: {counted(tally.runs, 'run')}, {counted(tally.steps, 'step')}, longest "
                f"{tally.longest}; "
                f"lookahead {_list(self.bounds.lookaheads)}, blocks of "
                f"{_list(self.bounds.block_sizes)} tokens, prompts to {self.bounds.prompt_max}, "
                f"outputs to {self.bounds.output_max}, {_seed(self.config)}"
            )


class KitItem(pytest.Item):
    """One test of the kit."""

    kit: Kit

    @classmethod
    def named(cls, name: str, session: pytest.Session, kit: Kit) -> Self:
        """Make an item that pytest collects."""
        # pytest leaves the further arguments of this method without a type.
        item: Self = cls.from_parent(session, name=name)  # pyright: ignore[reportUnknownMemberType]
        item.kit = kit
        return item

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Name the test for people."""
        return "stepahead", None, f"stepahead: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:  # noqa: ANN401, ARG002 # pytest's own
        """Tell a failing run in words instead of a traceback through the kit."""
        if isinstance(excinfo.value, RunFailed):
            return excinfo.value.failure.story()
        return str(super().repr_failure(excinfo))


class RunFailed(Exception):
    """A run of the scheduler under test went wrong."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(str(failure.error))


class ExhaustiveItem(KitItem):
    """Every order of the moves of one plan."""

    plan: Plan

    @classmethod
    def of(cls, session: pytest.Session, kit: Kit, plan: Plan) -> Self:
        """Make the item of one plan."""
        item = cls.named(f"every order: {plan}", session, kit)
        item.plan = plan
        return item

    def runtest(self) -> None:
        """Search.

        Raises:
            RunFailed: a run broke a rule, or the adapter raised.
        """
        explored = explore(self.kit.factory, self.plan, self.config.option.stepahead_runs)
        self.kit.explored.append(explored)
        if explored.failure is not None:
            self.kit.failed(explored.failure)
            raise RunFailed(explored.failure) from explored.failure.error


class RandomItem(KitItem):
    """Long random runs, shrunk to the smallest failing one."""

    @classmethod
    def of(cls, session: pytest.Session, kit: Kit) -> Self:
        """Make the item."""
        return cls.named("random runs", session, kit)

    def runtest(self) -> None:
        """Search, unless a smaller search has found something already.

        Raises:
            RunFailed: a run broke a rule, or the adapter raised.
        """
        if self.kit.failures:
            pytest.skip("an exhaustive search has found something smaller; mend that first")
        from hypothesis import HealthCheck, settings  # noqa: PLC0415 # its own plugin sets the profile first
        from hypothesis.stateful import run_state_machine_as_test  # noqa: PLC0415

        searched = settings(
            max_examples=self.config.option.stepahead_examples,
            stateful_step_count=_STEPS,
            deadline=None,
            print_blob=False,
            # A slow scheduler or a busy machine is no reason to find nothing.
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        try:
            run_state_machine_as_test(self.kit.machine, settings=searched)
        except Exception as error:
            failure = self.kit.machine.failure
            if failure is None:
                raise
            self.kit.failed(failure)
            raise RunFailed(failure) from error


def _list(numbers: Any) -> str:  # noqa: ANN401 # any sequence of numbers
    return ", ".join(map(str, numbers))


def _seed(config: pytest.Config) -> str:
    seed = getattr(config.option, "hypothesis_seed", None)
    return "no seed given" if seed is None else f"seed {seed}"
