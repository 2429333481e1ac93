"""All of GTPO in bare torch on the built-in model: half a minute on one CPU core, without a download.

The reward is 0 to 20 (docs/rewards.md); it rises from about 11 to about 18: `python examples/bare_loop.py`.
B prompts, G completions of each, T tokens, N tokens flattened; entropies and log-probabilities are in nats.
"""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gtpo_cli import accuracy_reward, arithmetic_problems, format_reward, resolve_name
from gtpo_cli.kernels import token_logprobs_and_entropy
from gtpo_cli.objective import (
    coefficients,
    conflict_mask,
    conflict_weights,
    group_advantages,
    keep_mask,
    mean_entropy,
    policy_loss,
)

torch.manual_seed(0)
torch.set_num_threads(1)  # the fastest for a model this small
folder = resolve_name("builtin:tiny")  # or any causal language model with a chat template
tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(folder)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.1)
B, G, steps, initial_entropy = 8, 8, 100, None
sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 64}
problems = arithmetic_problems(B * steps, split="train", seed=0)
for step in range(steps):
    batch = problems[B * step : B * (step + 1)]
    chats = [[{"role": "user", "content": problem.question}] for problem in batch]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    rows = model.generate(**prompts, **sampling, num_return_sequences=G)  # (B * G, prompt and completion)
    P = prompts["input_ids"].shape[1]
    ended = (rows[:, P:] == tokenizer.eos_token_id).long()
    mask = ended.cumsum(dim=1) - ended == 0  # up to and including the end-of-sequence token
    texts = tokenizer.batch_decode(rows[:, P:], skip_special_tokens=True)
    scores = [format_reward(text) + accuracy_reward(text, batch[i // G].gold) for i, text in enumerate(texts)]
    rewards_BG = torch.tensor(scores).view(B, G)

    ids_BGT, mask_BGT = rows[:, P:].reshape(B, G, -1), mask.view(B, G, -1)
    A_BG = group_advantages(rewards_BG)  # Eq. 12
    w_BGT = conflict_weights(conflict_mask(ids_BGT, mask_BGT, A_BG), A_BG)  # lambda, Eq. 9
    seen = torch.cat([prompts["attention_mask"].repeat_interleave(G, dim=0), mask.long()], dim=1)
    hidden = model.model(rows, attention_mask=seen, position_ids=(seen.cumsum(dim=1) - 1).clamp(min=0))[0]
    logp_N, H_N = token_logprobs_and_entropy(  # the logits are never held whole
        hidden[:, P - 1 : -1].flatten(0, 1), model.get_output_embeddings().weight, ids_BGT.flatten()
    )
    H_BG = mean_entropy(H_N.view_as(ids_BGT), mask_BGT)
    initial_entropy = initial_entropy or float(H_BG.mean())  # <H>_ini: of the untrained model
    keep_BG = keep_mask(H_BG, initial_entropy=initial_entropy)  # delta, Eq. 10
    c_BGT = coefficients(A_BG, H_BG, keep_BG, w_BGT, mask_BGT, entropy_coef=0.1)  # delta (A - gamma <H>) lambda
    loss, _ = policy_loss(logp_N.view_as(ids_BGT), c_BGT, mask_BGT)  # Eq. 11

    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print(f"step {step + 1}: reward {rewards_BG.mean():.2f}, entropy {H_BG.mean():.3f}", flush=True)
