"""Other tools' names for the keys of a recipe: TRL, Unsloth, PEFT, axolotl, LLaMA-Factory, torchtune, verl, the paper.

`load.py` uses this table for unknown keys, `cli/app.py` for unknown options, `tools/trl/config.py` for settings
of TRL that a recipe's run does not take, and `translation.py` for whole training files.
"""

from __future__ import annotations

from dataclasses import dataclass

from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.recipe.section import fields_of


@dataclass(frozen=True, slots=True)
class Synonym:
    """A recipe's key for another tool's word.

    `key`: None if there is nothing to set; `note`: the difference from the other tool, or the reason.
    """

    key: str | None
    note: str

    @property
    def meaning(self) -> str:
        """The meaning of the key in gtpo."""
        said = fields_of(Recipe)[self.key].description if self.key is not None else None
        return "; ".join(part for part in (said, self.note) if part)

    def __str__(self) -> str:
        return self.note if self.key is None else f"use {self.key}: {self.meaning}"


_BY_ACCELERATE = "accelerate config sets it, for gtpo train --engine trl (docs/trl.md)"
_BY_ENGINE = "the engine decides (rollout.engine, model.backend)"
_SAMPLING = "training samples from the policy itself, at rollout.temperature (evaluation.top_p is for gtpo eval)"
_LOGGED = "every step is logged"

# Words, key, difference. A word applies anywhere in a recipe, one with dots only in these sections.
TABLE: tuple[tuple[str, str | None, str], ...] = (
    ("random_state random_seed data_seed train_seed", "seed", ""),
    ("save_dir out_dir output_path default_local_dir", "output_dir", ""),
    ("experiment_name exp_name wandb_run_name wandb_name", "run_name", ""),
    # model
    (
        "model_name_or_path model_name base_model model_id model_path pretrained_model_name_or_path pretrained_model "
        "checkpoint_dir",
        "model.name",
        "",
    ),
    (
        "adapter_name_or_path lora_model_dir adapter_path peft_model_path lora_path init_from_checkpoint",
        "model.start",
        "",
    ),
    ("model_revision revision_of_model", "model.revision", ""),
    ("use_unsloth", "model.backend", ""),
    ("quantization_bit quantization use_4bit load_in_4_bit use_qlora qlora", "model.load_in_4bit", "true or false"),
    ("load_in_8bit use_8bit", "model.load_in_4bit", "4 bits or none"),
    ("bf16 fp16 tf32 torch_dtype mixed_precision precision bfloat16 float16", "model.dtype", ""),
    (
        "max_seq_len sequence_len seq_length cutoff_len max_length model_max_length context_length max_model_len "
        "vllm_max_model_length vllm_max_model_len",
        "model.max_seq_length",
        "",
    ),
    (
        "use_gradient_checkpointing enable_activation_checkpointing activation_checkpointing "
        "enable_gradient_checkpointing",
        "model.gradient_checkpointing",
        "",
    ),
    ("use_peft use_lora peft peft_config lora_config adapter finetuning_type", "model.lora", ""),
    ("lora_r lora_rank r lora_dim max_lora_rank", "model.lora.rank", ""),
    ("lora_alpha", "model.lora.alpha", ""),
    ("lora_dropout", None, "adapters have no dropout (docs/objective.md)"),
    (
        "lora_target_modules lora_target lora_modules lora_attn_modules lora_target_linear",
        "model.lora.target_modules",
        "",
    ),
    # data
    (
        "dataset_name dataset_id train_dataset hub_dataset dataset_repo",
        "data.dataset",
        "its id on the hub; of known benchmarks the name (data.benchmark)",
    ),
    (
        "dataset_config dataset_config_name subset dataset_subset config_name dataset_revision",
        "data.dataset",
        "owner/name:configuration@revision",
    ),
    (
        "datasets dataset_mixer dataset_mixture mix_strategy interleave_probs interleave_probabilities data_mix",
        "data.mixture",
        "sources with their weights",
    ),
    ("dataset_weights mixture_weights sampling_weights", "data.mixture", ""),
    (
        "test_share test_size val_size val_set_size eval_split_ratio split_dataset_ratio validation_split_percentage "
        "train_test_split test_ratio",
        "data.held_out",
        "a share, not a number of rows",
    ),
    ("split_seed test_seed", None, "data.held_out chooses by the questions' texts alone"),
    (
        "eval_file validation_file test_file val_files val_file test_files",
        "data.path",
        "with train.jsonl and test.jsonl in it",
    ),
    ("answer_format gold_format answer_parser gold_function extract_answer", "data.gold", ""),
    ("train_file train_files train_data data_path data_files dataset_path dataset_dir", "data.path", ""),
    ("dataset_train_split train_split dataset_split", "data.split", ""),
    ("column_mapping columns_mapping dataset_columns field_mapping", "data.columns", ""),
    (
        "prompt_column prompt_key question_column input_column dataset_text_field messages_column messages_key "
        "field_messages chat_column conversation_column field_instruction problem_column",
        "data.columns.question",
        "",
    ),
    (
        "answer_column answer_key label_column label_key response_column target_column ground_truth_column "
        "ground_truth_key gold_column field_output",
        "data.columns.answer",
        "the gold answer",
    ),
    ("max_train_samples max_samples train_samples", "data.limit", ""),
    ("shuffle_dataset shuffle_data", "data.shuffle", ""),
    ("max_prompt_length max_prompt_len max_source_length", "data.max_prompt_tokens", "none is cut"),
    ("system_message default_system system", "data.system_prompt", ""),
    # rollout
    ("use_vllm fast_inference inference_engine infer_backend", "rollout.engine", ""),
    (
        "num_generations g n num_return_sequences n_samples_per_prompt samples_per_prompt rollouts_per_prompt "
        "num_rollouts grpo_samples num_samples_per_prompt",
        "rollout.group_size",
        "",
    ),
    (
        "per_device_train_batch_size train_batch_size batch_size global_batch_size rollout_batch_size "
        "generation_batch_size ppo_mini_batch_size",
        "rollout.prompts_per_step",
        "counted in prompts of rollout.group_size completions: TRL's per_device_train_batch_size x "
        "gradient_accumulation_steps x devices / num_generations; memory is training.micro_batch_size",
    ),
    ("sampling_temperature", "rollout.temperature", ""),
    (
        "max_completion_length max_new_tokens max_tokens max_response_length response_length max_generated_tokens "
        "max_completion_len",
        "rollout.max_completion_tokens",
        "",
    ),
    ("mask_truncated_completions overlong_filtering", "rollout.mask_truncated", ""),
    ("vllm_gpu_memory_utilization gpu_memory_util", "rollout.gpu_memory_utilization", ""),
    (
        "vllm_importance_sampling_correction vllm_importance_sampling_mode importance_sampling_correction use_tis tis",
        "rollout.importance_correction",
        "",
    ),
    # rewards
    ("reward_funcs reward_functions reward_function reward_fn custom_reward_function", "rewards.plugins", ""),
    ("reward_weights", "rewards.plugins.weight", "rewards.format.weight and rewards.accuracy.weight are gtpo's own"),
    # objective
    ("algorithm algo rl rl_algorithm method adv_estimator advantage_estimator", "objective.name", ""),
    ("loss_type", "objective.name", "it also sets objective.average"),
    ("loss_agg_mode loss_reduction", "objective.average", ""),
    (
        "scale_rewards normalize_advantages norm_adv_by_std_in_grpo",
        "objective.advantages.config",
        "{scale: std} for true or group, {scale: none} for false",
    ),
    ("importance_sampling_level", "objective.loss.rule", ""),
    (
        "epsilon eps clip_epsilon clip_ratio clip_range cliprange clip_eps eps_clip",
        "objective.clip",
        "clip_epsilon: x in objective sets both ends",
    ),
    ("epsilon_low eps_low clip_ratio_low clip_low", "objective.clip.low", ""),
    ("epsilon_high eps_high clip_ratio_high clip_high clip_higher", "objective.clip.high", ""),
    (
        "vllm_importance_sampling_clip_max vllm_importance_sampling_cap",
        "rollout.importance_correction",
        "the cap is 2.0",
    ),
    (
        "beta kl_beta kl_coeff kl_loss_coef init_kl_coef kl_penalty use_kl_loss",
        "objective.kl_coef",
        "the factor of the KL term",
    ),
    (
        "gamma ent_coef entropy_coefficient entropy_bonus entropy_weight",
        "objective.entropy_coef",
        "no bonus in the loss",
    ),
    ("lambda conflict_weight", "objective.token_weights.config", "{positive: 2, negative: 0} in GTPO"),
    ("theta entropy_threshold filter_threshold", "objective.filter.threshold", ""),
    ("h_ini", "objective.initial_entropy", ""),
    ("dynamic_sampling filter_groups", "objective.resample", ""),
    ("mu num_ppo_epochs ppo_epochs", "objective.num_iterations", ""),
    # optimizer
    ("optim optim_type optimizer_name optimizer_type", "optimizer.name", ""),
    ("lr peak_lr max_lr actor_lr actor_learning_rate", "optimizer.learning_rate", ""),
    ("adam_beta1 adam_beta2 beta1 beta2 adam_betas optimizer.beta", "optimizer.betas", "both in one list"),
    ("adam_epsilon adam_eps optimizer.eps optimizer.epsilon", None, "Adam's epsilon is 1e-8 in every run"),
    ("wd", "optimizer.weight_decay", ""),
    (
        "gradient_clipping grad_clip clip_grad clip_grad_norm gradient_clip_val gradient_clip max_norm",
        "optimizer.max_grad_norm",
        "",
    ),
    ("lr_scheduler_type lr_scheduler lr_schedule scheduler scheduler_type", "optimizer.schedule", ""),
    (
        "warmup_steps num_warmup_steps lr_warmup_steps warmup lr_warmup_steps_ratio",
        "optimizer.warmup_ratio",
        "a share of all steps: warm-up steps / steps of the run",
    ),
    # training
    ("num_train_epochs num_epochs n_epochs total_epochs", "training.epochs", ""),
    ("max_train_steps total_training_steps num_training_steps num_steps total_steps steps", "training.max_steps", ""),
    ("max_steps_per_epoch", "training.max_steps", "of the whole run"),
    (
        "gradient_accumulation_steps grad_accumulation_steps gradient_accumulation",
        "training.micro_batch_size",
        "gradients add up to a whole step; a larger step is a larger prompts_per_step",
    ),
    (
        "micro_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu forward_batch_size",
        "training.micro_batch_size",
        "it changes memory and speed, not the step (rollout.prompts_per_step)",
    ),
    ("save_steps save_freq save_interval checkpoint_every", "training.save_every", ""),
    ("save_total_limit max_ckpt_to_keep", "training.keep_last", "the best checkpoint is kept too"),
    ("load_best_model_at_end metric_for_best_model", "training.keep_best", ""),
    ("eval_steps eval_freq eval_interval eval_strategy evaluation_strategy test_freq", "training.eval_every", ""),
    # evaluation
    ("eval_dataset eval_datasets eval_benchmarks test_dataset", "evaluation.benchmarks", ""),
    ("num_samples evaluation.num_generations evaluation.n num_generations_eval", "evaluation.samples", ""),
    (
        "evaluation.max_new_tokens evaluation.max_tokens evaluation.max_completion_length",
        "evaluation.max_completion_tokens",
        "",
    ),
    ("max_eval_samples evaluation.max_samples", "evaluation.limit", ""),
    ("eval_temperature", "evaluation.temperature", ""),
    # tracking
    ("report_to use_wandb wandb_mode log_with logger", "tracking.wandb.mode", "TensorBoard: tracking.tensorboard"),
    ("wandb_project project_name", "tracking.wandb.project", ""),
    ("wandb_entity entity", None, "wandb reads it from the variable WANDB_ENTITY"),
    ("wandb_tags tracking.wandb.tags", None, "wandb reads them from the variable WANDB_TAGS"),
    ("use_tensorboard", "tracking.tensorboard", ""),
    ("log_completions", "tracking.log_completions_every", ""),
    # nothing to set
    ("logging_steps logging_strategy logging_first_step log_every_n_steps log_freq", None, _LOGGED),
    ("logging_dir", None, "metrics.jsonl is in the run's folder"),
    ("resume_from_checkpoint auto_resume resume_mode", None, "gtpo train --resume RUN continues a run"),
    ("push_to_hub hub_model_id", None, "gtpo export RUN --push pushes a trained model (docs/export.md)"),
    (
        "rollout.top_p top_k min_p repetition_penalty presence_penalty frequency_penalty generation_kwargs",
        None,
        _SAMPLING,
    ),
    ("chat_template_kwargs template_kwargs enable_thinking", "data.template_arguments", ""),
    ("chat_template template", None, "the tokenizer's chat template writes the prompts"),
    ("deepspeed deepspeed_config fsdp fsdp_config num_gpus n_gpus n_gpus_per_node nnodes", None, _BY_ACCELERATE),
    ("flash_attention flash_attn attn_implementation sample_packing packing", None, _BY_ENGINE),
)

# gtpo's values and TRL's: objective.average -> loss_type, keyword scale of the rule group -> scale_rewards.
LOSS_TYPES = {"completion": "grpo", "token": "dapo", "budget": "dr_grpo", "sum": "luspo"}
SCALES = {"std": "group", "none": "none"}

SYNONYMS = {word: Synonym(key, note) for words, key, note in TABLE for word in words.split()}


def find_synonym(word: str) -> Synonym | None:
    """Find gtpo's key for the last part of a dotted key, with or without its sections.

    Upper and lower case are equal, and so are `-` and `_`.
    """
    parts = _plain(word).split(".")
    return next((SYNONYMS[".".join(parts[i:])] for i in range(len(parts)) if ".".join(parts[i:]) in SYNONYMS), None)


def keys_for(word: str) -> list[Synonym]:
    """Return the keys for a word outside a recipe (`--lr`, `--max-steps`, `--model`).

    The word may be another tool's or gtpo's, with or without sections. A section stands for its first key.
    """
    if (synonym := find_synonym(word)) is not None:
        return [synonym]
    word, keys = _plain(word), fields_of(Recipe)
    last = word.rpartition(".")[2]
    named = [word] if word in keys else [key for key in keys if key.rpartition(".")[2] == last]
    return [Synonym(next((key for key in keys if key.startswith(f"{name}.")), name), "") for name in named]


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")
