"""Token log-probabilities and entropies without full logits: chunked matrix products, and a Triton row kernel."""

from gtpo_cli.kernels.logprobs import token_logprobs_and_entropy

__all__ = ["token_logprobs_and_entropy"]
