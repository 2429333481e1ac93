"""The allocator of a sleeping engine, as Unsloth and gtpo leave it: vLLM's class, with stand-ins for its C code."""

from __future__ import annotations

from typing import Any

import pytest

from gtpo_cli.errors import out_of_memory
from gtpo_cli.policy.unsloth_policy import recording_what_sleeps


class Card:
    """Maps at most `room` allocations; what is mapped or unmapped twice is an error, as CUDA's driver has it."""

    def __init__(self) -> None:
        self.mapped, self.room, self.copied = {1, 2, 3, 4}, 4, list[tuple[int, int]]()

    def create_and_map(self, handle: Any) -> None:
        self._check(handle[2] not in self.mapped, "invalid argument")
        self._check(len(self.mapped) < self.room, "out of memory")
        self.mapped.add(handle[2])

    def unmap_and_release(self, handle: Any) -> None:
        self._check(handle[2] in self.mapped, "invalid argument")
        self.mapped.remove(handle[2])

    def cudaMemcpy(self, to: int, of: int, size: int) -> None:  # CUDA's name
        self.copied.append((to, of))

    def _check(self, right: bool, words: str) -> None:
        if not right:
            raise RuntimeError(f"CUDA Error: {words} at /workspace/csrc/cumem_allocator.cpp:62")


@pytest.fixture
def card(on_card: Any, monkeypatch: pytest.MonkeyPatch) -> Card:
    import vllm
    from vllm.device_allocator import cumem

    card, own = Card(), cumem.CuMemAllocator
    for name in ("create_and_map", "unmap_and_release"):
        monkeypatch.setattr(cumem, name, getattr(card, name))
    monkeypatch.setattr(cumem, "libcudart", card)
    for owner, names in (
        (own, ("__init__", "sleep", "wake_up")),
        (vllm.LLM, ("generate",)), (vllm.AsyncLLMEngine, ("generate",)),
    ):  # fmt: skip
        for name in names:  # which Unsloth replaces: as they were, afterwards
            monkeypatch.setattr(owner, name, getattr(owner, name))
    return card


@pytest.fixture
def allocator(card: Card) -> Any:
    from unsloth_zoo import vllm_utils
    from vllm.device_allocator import AllocationData, cumem

    with recording_what_sleeps():
        vllm_utils.patch_vllm_enable_sleep_mode()
    allocator = cumem.CuMemAllocator()
    tags = {1: "weights", 2: "kv_cache", 3: "kv_cache", 4: "runtime"}
    allocator.pointer_to_data = {at: AllocationData((0, 64, at, 0), tag) for at, tag in tags.items()}
    return allocator


def test_waking_without_room_changes_nothing_and_can_be_repeated(allocator: Any, card: Card) -> None:
    allocator.sleep(("weights", "runtime"))  # as vLLM's level 1 asks; the policy trains with the weights
    assert card.mapped == {1}
    assert [data.is_asleep for data in allocator.pointer_to_data.values()] == [False, True, True, True]
    card.room = 3
    with pytest.raises(RuntimeError) as failed:
        allocator.wake_up(None)
    assert out_of_memory(failed.value) == "the GPU"
    assert card.mapped == {1}
    card.room = 4
    backup = allocator.pointer_to_data[4].cpu_backup_tensor.data_ptr()
    allocator.wake_up(None)
    assert card.mapped == {1, 2, 3, 4}
    assert card.copied[-1] == (4, backup)
    assert allocator.pointer_to_data[4].cpu_backup_tensor is None
    allocator.wake_up(None)  # awake already


def test_what_is_freed_asleep_is_mapped_when_vllms_c_code_unmaps_it(allocator: Any, card: Card) -> None:
    """One at a time: at the end of a process there may be room for no more."""
    allocator.sleep()
    card.room = 2
    for pointer in (2, 3, 4):
        card.unmap_and_release(allocator.python_free_callback(pointer))
    card.unmap_and_release(allocator.python_free_callback(1))
    assert card.mapped == set()
    assert allocator.pointer_to_data == {}
