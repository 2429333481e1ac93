"""`gtpo train --engine trl`: train a recipe with TRL's trainer, on as many processes as it was started with.

    accelerate launch --num_processes 4 -m gtpo_cli train --recipe llama8b_gsm8k.yaml --engine trl

gtpo provides data, prompts, rewards, entropy probe, run folder, guard and metrics. TRL provides generation, forward,
backward, update, distribution and the state to resume from (`<run>/trl/`).

The recipe's rewards become a reward function of TRL, which keeps its verdicts as the records that gtpo logs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import PrinterCallback

from gtpo_cli.data import Prompt, PromptOrder
from gtpo_cli.data.prompts import completion_text
from gtpo_cli.errors import CheckpointError, ModelError, RecipeError
from gtpo_cli.job import TrainingJob
from gtpo_cli.objective import policy_loss
from gtpo_cli.policy import Policy
from gtpo_cli.policy.engines import on_transformers
from gtpo_cli.policy.loading import dtype_name
from gtpo_cli.policy.loading import quiet as quiet_libraries
from gtpo_cli.policy.sampler import load_sampler
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import seed_random_states
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.seeds import derive_seed
from gtpo_cli.terminal.signals import interrupt_flag
from gtpo_cli.text import one_line
from gtpo_cli.tools.trl.config import check_extra, choose_engine, grpo_arguments
from gtpo_cli.tools.trl.keeper import RunKeeper
from gtpo_cli.tools.trl.trainer import GRPOConfig, GTPOTrainer
from gtpo_cli.training.run import Outcome, newest_state, open_run
from gtpo_cli.training.setup import find_initial_entropy, set_up
from gtpo_cli.training.start import keep_start, record_facts
from gtpo_cli.training.step import Ratios, StepRows, StepSamples, step_rows
from gtpo_cli.types import Completion, Group, Verdict

T = TypeVar("T")

PATIENCE = timedelta(hours=6)  # other processes wait while the main one measures the initial entropy


class Processes:
    """The processes that were started together (accelerate launch, torchrun), or this one alone."""

    def __init__(self) -> None:
        """Raises ModelError if accelerate was asked for several processes and started one."""
        # accelerate launch sets the first if asked for several processes; a launcher that starts several sets another
        started = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} & set(os.environ)
        if "MASTER_ADDR" in os.environ and not started:
            raise ModelError(
                "accelerate launch started one process though several were requested: with --cpu it needs mpirun and "
                "--mpirun_hostfile for that; torchrun --nproc_per_node 2 -m gtpo_cli train ... needs neither"
            )
        if not torch.cuda.is_available():  # accelerate would use cpu:0, to which torch.load cannot map a checkpoint
            os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")
        self._state = PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)

    @property
    def is_main(self) -> bool:
        return bool(self._state.is_main_process)

    @property
    def count(self) -> int:
        return int(self._state.num_processes)

    def agree(self, value: T) -> T:
        """Return the main process's value in all processes. Waits for all."""
        agreed: list[T] = broadcast_object_list([value])
        return agreed[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Leave together, or alone after an error, as the others may be waiting elsewhere; the launcher ends them.

        Gloo's threads need Python's lock to release their last tensors. Ending the group at that moment would hold the
        lock and deadlock, so the threads get time first.
        """
        if error is not None:
            return
        self._state.wait_for_everyone()
        time.sleep(0.2)
        self._state.destroy_process_group()


def train(
    job: TrainingJob,
    folder: RunFolder,
    processes: Processes,
    *,
    resume: bool = False,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
    extra: Mapping[str, Any] | None = None,
) -> Outcome | None:
    """Train as the job says in an existing run folder. Every process calls this; only the main one prints.

    `extra`: settings of GRPOConfig without a recipe key (`check_extra`). The other arguments, and the main process's
    result, are as in `gtpo_cli.training.loop.train`; other processes return None.
    The recipe has passed `check_recipe`. Raises GtpoError.
    """
    extra = extra or {}
    say = say if processes.is_main else lambda text: None
    recipe, order, prompts = job.recipe, job.data.order, job.data.prompts
    if unknown := sorted(extra.keys() - GRPOConfig.__dataclass_fields__.keys()):
        raise RecipeError(f"--trl {', '.join(unknown)}: TRL's GRPOConfig has no such setting")
    check_extra(extra, recipe)
    engine, recipe = choose_engine(recipe), on_transformers(recipe)
    job = job.with_recipe(recipe)
    if recipe.objective.resample:
        say("objective.resample: TRL samples each group once, so groups without reward spread are not replaced")
    state = newest_state(recipe, folder, say) if resume and processes.is_main else None
    with ExitStack() as stack:
        scorer = stack.enter_context(Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens))
        seed_random_states(derive_seed(recipe.seed, "torch"))
        kept = processes.agree(keep_start(recipe.model, folder) if processes.is_main else None)
        setup = set_up(job, say=say, with_reference=False, start=kept)  # TRL loads the reference itself
        policy = setup.policy
        assert isinstance(policy, TransformersPolicy)
        start = processes.agree(state.step if state else 0)
        if start and recipe.model.lora is not None:
            policy.load(Path(_resumed(folder, start, recipe)))  # a check; TRL loads it again without one
        arguments = grpo_arguments(
            recipe, folder.trl, engine, processes=processes.count, prompts_per_step=order.prompts_per_step,
            longest_prompt=job.data.longest_prompt, max_seq_length=policy.max_seq_length,
            steps=order.total_steps, dtype=dtype_name(policy.dtype), extra=extra,
        )  # fmt: skip
        measured = math.nan
        if processes.is_main:
            sampler = load_sampler(policy, job)
            measured = find_initial_entropy(job, folder, policy, sampler, say)
        initial_entropy = processes.agree(measured)
        keeper = RunKeeper(recipe.objective.num_iterations, policy)
        if processes.is_main:
            record_facts(folder, setup.facts | _facts(arguments, processes, extra), say)
            folder.keep_beginning(job.problem_digests, job.code_digests)
            opened = open_run(
                recipe, folder, keeper, state=state, total_steps=order.total_steps, initial_entropy=initial_entropy,
                quiet=quiet, say=say,
            )  # fmt: skip
            keeper.run = stack.enter_context(opened)
            keeper.signals = keeper.run.signals
        else:
            keeper.signals = stack.enter_context(interrupt_flag(lambda text: None))
        stack.enter_context(quiet_libraries())
        reward = RecipeReward(scorer, prompts, policy)
        trainer = make_trainer(recipe, policy, prompts, order, reward, keeper, arguments, initial_entropy)
        trainer._step = start * trainer.num_iterations * arguments["gradient_accumulation_steps"]  # TRL begins at 0
        trainer.train(resume_from_checkpoint=_resumed(folder, start, recipe) if start else None)
        return keeper.run.outcome if keeper.run else None


def make_trainer(
    recipe: Recipe,
    policy: TransformersPolicy,
    prompts: Sequence[Prompt],
    order: PromptOrder,
    reward: RecipeReward,
    keeper: RunKeeper,
    arguments: Mapping[str, Any],
    initial_entropy: float,
) -> RecipeTrainer:
    """Make the trainer for these prompts in this order, in full steps."""
    from datasets import Dataset  # required by TRL; if TRL is missing, tools/trl/trainer.py has reported it

    policy.model.set_attn_implementation("sdpa")  # the policy's own attention needs rows without padding
    policy.model.generation_config.eos_token_id = sorted(policy.eos_token_ids)  # TRL stops at these
    data = Dataset.from_dict({"prompt": [list(ids) for _, ids in prompts], "problem": range(len(prompts))})
    try:
        args = GRPOConfig(**arguments, use_cpu=not torch.cuda.is_available())
    except (TypeError, ValueError, ImportError) as error:
        raise RecipeError(f"--engine trl: TRL refuses the settings: {one_line(str(error), most=1000)}") from error
    trainer = RecipeTrainer(
        model=policy.model,
        reward_funcs=[reward],
        args=args,
        train_dataset=data,
        processing_class=policy.tokenizer,
        callbacks=[keeper],
        objective=recipe.objective,
        initial_entropy=initial_entropy,
        mask_truncated=recipe.rollout.mask_truncated,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.recipe, trainer.order, trainer.reward, trainer.keeper = recipe, order, reward, keeper
    return trainer


class RecipeTrainer(GTPOTrainer):
    """GTPOTrainer on tokenized prompts that passes each step's data to the run's keeper."""

    recipe: Recipe
    order: PromptOrder
    reward: RecipeReward
    keeper: RunKeeper
    logprobs_NT: torch.Tensor  # of the latest forward

    def _get_train_sampler(self, dataset: Any = None) -> RepeatedPrompts:
        passes = self.num_iterations * self.args.steps_per_generation
        return RepeatedPrompts(self.order, self.num_generations, self.recipe.rollout.steps_per_generation, passes)

    def _tokenize_prompts(self, prompts: Any) -> Any:
        return prompts, None, {}  # no images

    def _generate(self, prompts: Any) -> Any:
        with self.keeper.clock.phase("sample"):
            return super()._generate(prompts)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        with self.keeper.clock.phase("reward"):
            per_function = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        rewards = gather_object([verdict.reward for verdict in self.reward.verdicts])
        self._rewards_N = torch.tensor(rewards, dtype=torch.float64, device=per_function.device)  # TRL's: float32
        return per_function

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*arguments, **keywords)
        self.logprobs_NT = found[0].detach()
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Compute TRL's loss and record the ratios. TRL logs some of them by other names."""
        loss = super()._compute_loss(model, inputs)
        old, mask = inputs.get("old_per_token_logps"), inputs["completion_mask"]
        if old is not None and self.state.global_step != self.generated_at:
            metrics = policy_loss(
                self.logprobs_NT,
                inputs["advantages"],
                mask,
                old_logprobs_BGT=old,
                **self.method.loss_arguments(),
            ).metrics
            self.keeper.ratios += gather_object([Ratios.from_metrics(inputs["advantages"] * mask, metrics)])
        return loss

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        assert self.seen is not None
        problems = gather_object([row["problem"] for row in inputs])
        verdicts = gather_object(self.reward.verdicts)
        sampled_NT = output.get("sampling_per_token_logps")
        self.keeper.sampler_known = sampled_NT is not None
        logprobs_NT = self.seen.logprobs_NT if sampled_NT is None else self._gather(sampled_NT)
        if self.accelerator.is_main_process:
            self.keeper.rows = self._step_rows(problems, verdicts, logprobs_NT.cpu())
        return output

    def _step_rows(self, problems: list[int], verdicts: list[Any], sampled_NT: torch.Tensor) -> StepRows:
        """Return the generation as the record that gtpo's own loop makes.

        It covers all steps of the generation, since TRL distributes the rows to the steps at random.
        """
        assert self.seen is not None
        seen = self.seen
        ids, mask = seen.ids_NT.cpu(), seen.mask_NT.cpu()
        groups = self.reward.groups(
            problems,
            verdicts,
            [row[real].tolist() for row, real in zip(ids, mask, strict=True)],
            [row[real].tolist() for row, real in zip(sampled_NT, mask, strict=True)],
            size=seen.rewards_BG.shape[1],
        )
        rows = step_rows(
            StepSamples(groups), self.method, {}, mask_truncated=self.mask_truncated, device=seen.mask_NT.device
        )
        T, every = rows.ids_NT.shape[1], torch.arange(len(rows), device=seen.mask_NT.device)
        measured = {"logprobs_NT": seen.logprobs_NT * seen.mask_NT, "entropy_NT": seen.entropy_NT * seen.mask_NT}
        values = measured | {"weights_NT": seen.weights_NT} | seen.of_rows._asdict()
        rows.write(every, **{name: value[:, :T] if value.ndim == 2 else value for name, value in values.items()})
        return rows


@dataclass(frozen=True, slots=True)
class RepeatedPrompts:
    """A sampler for TRL's loader that repeats each prompt of a generation `group_size` times.

    Each generation is repeated for every forward on it (`passes`: steps x updates x micro-batches). The last generation
    is complete too; TRL stops within it when the run's steps end.
    """

    order: PromptOrder
    group_size: int
    steps: int  # in a generation
    passes: int

    def __iter__(self) -> Iterator[int]:
        for first in range(1, self.order.total_steps + 1, self.steps):
            numbers = [number for step in range(self.steps) for number in self.order.numbers(first + step)]
            for _ in range(self.passes):
                yield from (number for number in numbers for _ in range(self.group_size))

    def __len__(self) -> int:
        generations = math.ceil(self.order.total_steps / self.steps)
        return generations * self.passes * self.steps * self.order.prompts_per_step * self.group_size


def _resumed(run: RunFolder, step: int, recipe: Recipe) -> str:
    folder = run.trl / f"checkpoint-{step * recipe.objective.num_iterations}"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is missing, so TRL cannot continue from step {step}; start a new run")
    return str(folder)


def _facts(arguments: Mapping[str, Any], processes: Processes, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts for environment.json. Of `extra` they have only the names, since a value may be a secret."""
    shown = {name: value for name, value in arguments.items() if name not in extra and name != "output_dir"}
    return {
        "trainer": f"trl {version('trl')}",
        "processes": processes.count,
        "grpo_config": shown | dict.fromkeys(extra, "given with --trl"),
    }


class RecipeReward:
    """A reward function of TRL: the recipe's weighted sum, from the same scorer as gtpo's own loop.

    `verdicts`: those of the newest call, for this process's completions. User rewards see NaN as log-probabilities,
    since TRL does not have them when it scores.
    """

    __name__ = "reward"  # as TRL logs it

    def __init__(self, scorer: Scorer, prompts: Sequence[Prompt], policy: Policy) -> None:
        self._scorer, self._prompts = scorer, prompts
        self._tokenizer, self._eos = policy.tokenizer, policy.eos_token_ids
        self.verdicts: list[Verdict] = []

    def __call__(self, *, completion_ids: list[list[int]], problem: list[int], **_: Any) -> list[float]:
        completions = self.completions(completion_ids, [[math.nan] * len(ids) for ids in completion_ids])
        groups = [
            Group(self._prompts[number][0], (), (completion,))
            for number, completion in zip(problem, completions, strict=True)
        ]
        self.verdicts = [group.verdicts[0] for group in self._scorer.score_groups(groups)]
        return [verdict.reward for verdict in self.verdicts]

    def completions(self, token_ids: list[list[int]], logprobs: list[list[float]]) -> list[Completion]:
        """Make records of completions, decoding their texts as gtpo's samplers do."""
        return [
            Completion(
                tuple(ids),
                tuple(logp),
                "stop" if ids and ids[-1] in self._eos else "length",
                completion_text(self._tokenizer, ids, self._eos),
            )
            for ids, logp in zip(token_ids, logprobs, strict=True)
        ]

    def groups(
        self,
        problems: Sequence[int],
        verdicts: Sequence[Verdict],
        token_ids: list[list[int]],
        logprobs: list[list[float]],
        *,
        size: int,
    ) -> list[Group]:
        """Build the step's groups from the rows of all processes in order."""
        rows = self.completions(token_ids, logprobs)
        groups = []
        for start in range(0, len(rows), size):
            assert len(set(problems[start : start + size])) == 1, "a group is not in one piece"
            problem, prompt_ids = self._prompts[problems[start]]
            members = slice(start, start + size)
            groups.append(Group(problem, prompt_ids, tuple(rows[members]), tuple(verdicts[members])))
        return groups
