"""The section `rewards` of a recipe: tags, format, accuracy, and the user's own rewards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from gtpo_cli.recipe.section import Section
from gtpo_cli.types import CodeName, Place, Tags

TagName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]


class TagsRecipe(Section):
    reasoning: TagName | None = Field("reasoning", description="tag around the reasoning; null = none")
    answer: TagName = Field("answer", description="tag around the answer")


class FormatRewardRecipe(Section):
    weight: float = Field(1.0, ge=0.0, le=1000.0, description="factor")
    mode: Literal["strict", "presence"] = Field(
        "strict", description="strict: tags once each, in order; presence: the paper's sentence taken literally"
    )
    tags: TagsRecipe = Field(default_factory=TagsRecipe, description="names, without angle brackets")


class AccuracyRewardRecipe(Section):
    weight: float = Field(1.0, ge=0.0, le=1000.0, description="factor")
    equality: Literal["mathematics", "text"] = Field(
        "mathematics", description="how answers are compared; text: as it looks, except white space"
    )
    partial_credit: bool = Field(
        False, description="pay what a task gives for an answer that is partly right; false: only for a right one"
    )
    pays_nonsense: bool = Field(False, description="take a task although it pays for an empty or a senseless answer")


class LengthRewardRecipe(Section):
    weight: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="factor of DAPO's soft penalty for the last fifth of the longest completion; 0 = off",
    )


class PluginRewardRecipe(Section):
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"), AfterValidator(CodeName)] = (
        Field(description="pkg.module:function; (problem, completion) -> float, or as docs/rewards.md says")
    )
    weight: float = Field(1.0, ge=-1000.0, le=1000.0, description="factor of this reward")


class RewardsRecipe(Section):
    answer: Place = Field(
        "tags",
        description="where the answer stands: tags; boxed (the last \\boxed{}); hashes (after ####); last_line (after "
        "Answer:, or the last line)",
    )
    format: FormatRewardRecipe = Field(default_factory=FormatRewardRecipe, description="for the form: 0, 1 or 10")
    accuracy: AccuracyRewardRecipe = Field(
        default_factory=AccuracyRewardRecipe, description="for the right answer: 0 to 10"
    )
    length: LengthRewardRecipe = Field(default_factory=LengthRewardRecipe, description="for the length: 0 to -1")
    plugins: tuple[PluginRewardRecipe, ...] = Field((), description="rewards of your own")

    @property
    def tags(self) -> Tags:
        """Where the answer stands, and the names of the tags."""
        return Tags(self.format.tags.reasoning, self.format.tags.answer, self.answer)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each part of the reward, by its name in `Verdict.scores`."""
        built_in = {"format": self.format.weight, "accuracy": self.accuracy.weight}
        length = {"length": self.length.weight} if self.length.weight else {}  # not scored without
        return built_in | length | {plugin.name: plugin.weight for plugin in self.plugins}

    @property
    def takes_any_gold(self) -> bool:
        """Whether gold answers need not be mathematics."""
        return self.accuracy.weight == 0 or self.accuracy.equality == "text"

    def problems(self) -> list[str]:
        """List contradictions between keys, one line each that begins with the key."""
        found = []
        tags = self.format.tags
        if self.answer == "tags" and tags.reasoning == tags.answer:
            found.append(f"rewards.format.tags: reasoning and answer are both {tags.answer}; name two different tags")
        names = [plugin.name for plugin in self.plugins]
        for number, name in enumerate(names):
            if name in names[:number]:
                found.append(
                    f"rewards.plugins.{number}.name: {name} is listed twice; list it once, with the sum of the weights"
                )
        return found
