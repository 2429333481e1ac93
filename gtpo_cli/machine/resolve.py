"""Find what a recipe comes to on this machine: each part once, on first use, before weights load."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gtpo_cli.data import Prepared, PromptEncoder, prepare
from gtpo_cli.errors import CheckpointError, DataError, GtpoError, ModelError, translated
from gtpo_cli.job import Engines, Job, ModelFiles, TrainingJob
from gtpo_cli.machine.open_keys import Closed, Machine, close, for_measuring, this_machine
from gtpo_cli.machine.shapes import PUBLISHED, ModelShape, shape_of
from gtpo_cli.policy.engines import on_transformers
from gtpo_cli.policy.loading import has_tokenizer, load_config, read_model
from gtpo_cli.policy.tiny import BUILTIN_PREFIX, resolve_name
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import check_rewards
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.training.best import check_keep_best

if TYPE_CHECKING:
    from gtpo_cli.data.unseen import Benchmark


class Parts:
    """The parts of a recipe's job. Each raises its own error where it cannot be found."""

    def __init__(
        self,
        recipe: Recipe,
        machine: Machine | None = None,
        *,
        by_trl: bool = False,
        measures: Collection[str] | None = None,
        checkpoint: Path | None = None,
        tokenizer_path: str | None = None,
    ) -> None:
        """`machine`: this one by default. `by_trl`: for TRL's trainer, which holds the policy on transformers and makes
        full steps. `measures`: for measuring alone, when the engine gets the memory of training; the keys that stay as
        they are. `checkpoint`: the folder of trained full weights, which is the model then. `tokenizer_path`: of a
        tokenizer in place of the model's."""
        self.written, self.by_trl, self.measures, self._checkpoint = recipe, by_trl, measures, checkpoint
        self._machine, self._tokenizer_path = machine, tokenizer_path
        self._asked = on_transformers(recipe) if by_trl else recipe

    @cached_property
    def machine(self) -> Machine:
        return self._machine or this_machine()

    @cached_property
    def path(self) -> str:
        return resolve_name(self.written.model.name) if self._checkpoint is None else str(self._checkpoint)

    @cached_property
    def config(self) -> Any:
        """The model's configuration, or why it cannot be read."""
        try:
            return load_config(self.written.model, self.path)
        except ModelError as error:  # asked for only once, since asking the hub may take long
            return error

    @cached_property
    def shape_and_source(self) -> tuple[ModelShape, str]:
        """The model's dimensions, and what tells them."""
        name = self.written.model.name
        if not isinstance(self.config, ModelError):
            return shape_of(self.config, self.written.model), "its configuration"
        if name not in PUBLISHED:
            raise self.config
        return PUBLISHED[name], "its published shape; the hub did not give its configuration"

    @cached_property
    def shape(self) -> ModelShape | None:
        """The model's dimensions; None where nothing tells them."""
        try:
            return self.shape_and_source[0]
        except ModelError:
            return None

    @cached_property
    def closed(self) -> Closed:
        """The values of the open keys, and the engines."""
        builtin = self.written.model.name.startswith(BUILTIN_PREFIX)
        return close(self._asked, self.machine, None if builtin else self.shape)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe with every open key decided; of TRL's trainer the engines stay as written."""
        recipe = self.written.with_values(self.closed.values)
        if self.measures is None or isinstance(self.closed.engines, ModelError):
            return recipe
        return for_measuring(recipe, self.machine, self.shape, self.closed.engines, self.measures)

    @property
    def here(self) -> Recipe:
        """The recipe as this machine holds the policy."""
        return self.closed.recipe

    @property
    def engines(self) -> Engines:
        if isinstance(self.closed.engines, ModelError):
            raise self.closed.engines
        return self.closed.engines

    @cached_property
    def model(self) -> ModelFiles:
        if isinstance(self.config, ModelError):
            raise self.config
        return read_model(self.written.model, self.path, self.config, tokenizer_path=self._tokenizer_path)

    @cached_property
    def encoder(self) -> PromptEncoder:
        """The form of prompts and completions."""
        data, config = self.written.data, self.model.config.get_text_config()
        return PromptEncoder(
            self.model.tokenizer,
            data.system_prompt,
            tags=self.written.rewards.tags,
            arguments=data.template_arguments,
            embeddings=config.vocab_size,
        )

    @cached_property
    def data(self) -> Prepared:
        return prepare(self.written, self.encoder, self.model.context, full_steps=self.by_trl)

    @cached_property
    def held_out(self) -> tuple[Benchmark, ...]:
        """The benchmarks that `training.eval_every` measures."""
        if self.written.training.eval_every is None or self.measures is not None:
            return ()
        from gtpo_cli.data.unseen import load_benchmark

        try:
            return tuple(
                load_benchmark(self.written, name, self.encoder, max_seq_length=self.model.context)
                for name in self.written.evaluation.benchmarks
            )
        except DataError as error:
            raise DataError(f"training.eval_every: there is nothing to evaluate on: {error}") from error

    def check_rewards(self) -> None:
        """Raise RewardError for a reward that is missing or cannot be paid: see `rewards.check_rewards`."""
        if self.written.generates:
            check_rewards(self.written.rewards, [problem for problem, _ in self.data.prompts])

    def job(self) -> Job:
        """Return what loading and sampling need. Raises ModelError."""
        return Job(self.recipe, self.engines, self.model, self.encoder)

    def training_job(self) -> TrainingJob:
        """Return what training needs. Raises DataError, ModelError or RewardError for a part that cannot be found."""
        check_keep_best(self.written)
        self.check_rewards()
        return TrainingJob(
            self.recipe, self.engines, self.model, self.encoder, self.data, self.held_out, self.closed.values
        )


def measuring_job(
    recipe: Recipe,
    checkpoint: Checkpoint | None = None,
    *,
    temperature: float,
    adapter: Path | None = None,
    keep: Collection[str] = (),
    streaming: bool = False,
) -> Job:
    """Find what measuring needs of a run's checkpoint, or of the untrained model; no training data, no plug-ins.

    A checkpoint with full weights is a model of its own, so the base model is not needed. `temperature`: of its
    distributions; 0 is greedy, whose entropy is 0 by itself, so that is measured at 1. `adapter`: the folder of an
    adapter without a run; if it has a tokenizer, this writes the prompts, for the base too. `keep`: keys that do not
    change for measuring. `streaming` takes transformers, since streaming calls the model for every token.

    Raises ModelError, and CheckpointError for a checkpoint's own files.
    """
    whole = checkpoint.model if checkpoint is not None and checkpoint.has_full_weights else None
    asked = recipe.with_values({"rollout.temperature": temperature or 1.0})
    tokenizer_path = str(adapter) if adapter is not None and has_tokenizer(adapter) else None
    parts = Parts(
        on_transformers(asked) if streaming else asked, measures=keep, checkpoint=whole, tokenizer_path=tokenizer_path
    )

    def explained(error: ModelError) -> GtpoError:
        if whole is not None:
            return CheckpointError(f"{whole}: the weights cannot be read ({error}); choose another checkpoint")
        if adapter is not None and isinstance(parts.config, ModelError):
            return ModelError(
                f"{error} This is the base of the adapter {adapter}: what base_model_name_or_path in its "
                "adapter_config.json names, where a relative path starts at the working folder. Correct it there, or "
                "name the base with --set model.name=BASE (gtpo eval)."
            )
        folder = Path(recipe.model.name)
        if recipe.model.name.startswith(BUILTIN_PREFIX) or folder.is_absolute() or folder.exists():
            return error
        return ModelError(
            f"{error} If it is a folder: a relative path starts at the working folder, for a run at the one it was "
            "trained in; call gtpo there."
        )

    with translated(ModelError, explained, passing=()):
        return parts.job()
