"""The scores of one model on turns, losses and episodes, which are compared with another model's
scores.

Single answers are scored in `answer_scoring`. The package `promotion` makes decisions from two
models' scores.
"""

import msgspec


class TurnScore(msgspec.Struct, frozen=True):
    """The score of a model at a held-out turn.

    Attributes:
        turn: The name of the turn.
        task: The key of its task.
        capability: The expected tool, or the expected kind of answer.
        expects_call: Whether a call is expected.
        called: Whether the model called a tool.
        right: Whether the model's turn is right.
    """

    turn: str
    task: str
    capability: str
    expects_call: bool
    called: bool
    right: bool


class RowScore(msgspec.Struct, frozen=True):
    """A model's loss on a held-out row.

    Attributes:
        row: The id of the row.
        task: The key of its task.
        loss: The mean loss in nats per assistant token.
        tokens: The number of assistant tokens.
    """

    row: str
    task: str
    loss: float
    tokens: int


class EpisodeScore(msgspec.Struct, frozen=True):
    """The score of a model in one episode.

    Attributes:
        task: The key of the task that was played.
        trial: The number of the trial.
        seed: The seed of a fresh task.
        done: Whether the task was done.
        harmed: Whether the model changed the world wrongly; `None` if this is not known.
        must_act: Whether the task asks for a change; `None` if the world does not say.
        cut_off: Whether the model's last message was cut off before any harm was seen. The episode
            may then hide harm, so `harmed` is `None`.
        variant: The variant in which the task was played; empty for the original task.
        deviation: In a replayed world, the model's first turn that differs from every recording, so
            that it is unknown how the task continues; empty if the episode is settled.
    """

    task: str
    trial: int
    seed: int | None
    done: bool
    harmed: bool | None
    must_act: bool | None = None
    cut_off: bool = False
    variant: str = ""
    deviation: str = ""

    @property
    def undecided(self) -> bool:
        """Return whether a replayed world did not know how the task continues.

        Then `done` is false, although the task may be done.
        """
        return bool(self.deviation)


class Scores(msgspec.Struct, frozen=True):
    """All scores of a model.

    Attributes:
        evaluator: The fingerprint of the scoring of turns: rows, settings and versions. Scores with
            different fingerprints are never compared.
        turns: The scores at the held-out turns.
        losses: The losses on the held-out rows.
        world: The fingerprint of the world and the settings of the episodes.
        episodes: The scores of the episodes.
        varied_episodes: The scores of the episodes in which tasks were played in variants.
        not_played: The number of held-out tasks that a replayed world left out, by their kind.
    """

    evaluator: str
    turns: tuple[TurnScore, ...]
    losses: tuple[RowScore, ...] = ()
    world: str = ""
    episodes: tuple[EpisodeScore, ...] = ()
    varied_episodes: tuple[EpisodeScore, ...] = ()
    not_played: dict[str, int] = {}
