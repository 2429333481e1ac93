"""The commands: the module of each, and its line in `gtpo --help`.

A command's module is imported when the command is called, so no command loads another's libraries. The line is the
first paragraph of the command's own help (tests/unit/cli/test_imports.py compares them).
"""

COMMANDS = {  # name: (module in cli/, with a function or group of the same name; line)
    "init": (
        "init",
        "Write a recipe for your model, data and GPU: the paper's settings, scaled down until gtpo plan says they fit.",
    ),
    "train": ("train", "Train a model from a recipe; without one, the built-in model on arithmetic."),
    "eval": (
        "evaluate",
        "Measure a trained model on unseen problems: accuracy, pass@k, maj@k, format, entropy, length.",
    ),
    "runs": ("runs", "List the runs in a folder, newest first: name, method, steps, accuracy, age."),
    "compare": (
        "compare",
        "Compare evaluated runs on the problems they share: is B better than A, and by how much?",
    ),
    "report": (
        "report",
        "Write one HTML file about one or more runs: curves, benchmark table, recipes, samples. It needs no network.",
    ),
    "inspect": (
        "inspect",
        "Show a training step as GTPO saw it: each completion's tokens coloured by their weight lambda, and why.",
    ),
    "generate": (
        "generate",
        "Ask a model and watch it answer: streamed text, the answer that the rewards extract, and with --gold its "
        "reward.",
    ),
    "export": (
        "export",
        "Write a trained model for others to load: as an adapter, merged into its base, or as GGUF.",
    ),
    "try-reward": (
        "try_reward",
        "Test the reward on a few completions of the untrained model: what each earns, and the spread in each group.",
    ),
    "probe-entropy": (
        "probe_entropy",
        "Measure the initial entropy <H>_ini of the untrained model, which decides about the entropy filter.",
    ),
    "sweep": (
        "sweep",
        "Train named variants of a recipe with several seeds, and compare them: every figure of the paper.",
    ),
    "plan": ("plan", "Estimate steps, tokens, GPU memory by part, what fits, and the hours. Loads no weights."),
    "doctor": (
        "doctor",
        "Check whether training can start here: software, GPU, engines, hub, wandb, disk. Each problem has a remedy.",
    ),
    "recipes": ("recipes", "List, show, copy and check recipes."),
}
