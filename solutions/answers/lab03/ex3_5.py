"""A region of the graph: several backwards, early stop, nesting."""

import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks

from solutions.answers import right, solved, wrong

RecomputesForEveryTensor = wrong(
    "recompute once for each backward, and note its name",
    "            self.recomputed_for.add(backward)\n",
    "",
)
KeepsWhatItHas = wrong(
    "recompute for each backward, and note its name",
    "current_backward()",
    '"now"',
    "not in self.recomputed_for",
    "not in slot.tensors",
)
NeverStops = wrong(
    "stop at the last slot's number", "            raise StopEarlyError", "            pass"
)
AlwaysStops = wrong("run the whole function again then", "self.early_stop and ", "")
StopsAtTheLastOneAlive = wrong(
    "the last slot is dead there",
    "number + 1 == len(self.slots)",
    "all(slot() is None for slot in self.slots[number + 1 :])",
)
StopsOnlyAtALivingSlot = wrong(
    "stop at that slot's number all the same",
    "if self.early_stop and number",
    "if slot is not None and self.early_stop and number",
)
FillsTheDead = wrong(
    "'NoneType' object has no attribute", "if slot is not None", "if number < len(self.slots)"
)
TrustsTheNumber = wrong("IndexError: ", " if number < len(self.slots) else None", "")
HandsOutAndKeeps = wrong(
    "unpack takes the tensor out of its slot",
    "slot.tensors.pop(backward)",
    "slot.tensors[backward]",
)
RecomputesWhereNothingIsLeft = wrong(
    "and your region returned it twice",
    "raise CheckpointError(ALREADY_UNPACKED)",
    "self.recompute(backward)",
)
LooksIntoNoSlot = wrong(
    "look into the slot before you empty it",
    "        if backward not in slot.tensors:\n"
    "            raise CheckpointError(ALREADY_UNPACKED)\n",
    "",
)
HoldsItsSlots = wrong(
    "fill only slots that are alive, and hold no slot",
    "self.slots[number]() if number < len(self.slots)",
    "self.held[number] if number < len(self.held)",
    "    def unpack(",
    "    def pack(self, tensor):\n"
    "        slot = super().pack(tensor)\n"
    "        self.__dict__.setdefault('held', []).append(slot)\n"
    "        return slot\n"
    "\n"
    "    def unpack(",
)
NumbersOnlyTheLiving = wrong(
    "mat1 and mat2 shapes cannot be multiplied",
    "self.slots[number]() if number < len(self.slots)",
    "self.alive[number] if number < len(self.alive)",
    "    def unpack(",
    "    def recompute(self, name):\n"
    "        self.alive = [slot for slot in (ref() for ref in self.slots) if slot is not None]\n"
    "        super().recompute(name)\n"
    "        del self.alive\n"
    "\n"
    "    def unpack(",
)


LAB = solved("lab03")


@wrong("does anything beside its slot hold a recomputed tensor?")
class KeepsTheTensorItself(LAB.Region):
    def recompute(self, name):
        numbers = iter(range(10**6))

        def collect(tensor):
            self.fill(next(numbers), tensor, name)
            return tensor

        args, kwargs = self.bring_back()
        hooks = saved_tensors_hooks(collect, lambda tensor: tensor)
        with contextlib.suppress(LAB.StopEarlyError), torch.enable_grad(), hooks:
            self.run(*args, **kwargs)


@right
class TakenApart(LAB.Region):
    def fill(self, number, alias, backward):
        if number < len(self.slots):
            self.store(self.slots[number](), alias, backward)
        if number + 1 == len(self.slots) and self.early_stop:
            raise LAB.StopEarlyError

    def store(self, slot, alias, backward):
        if slot is not None:
            slot.tensors[backward] = alias


@right
class WithADictionaryOfItsOwn(LAB.Region):
    def unpack(self, slot):
        name = LAB.current_backward()
        if name not in self.recomputed_for:
            self.recomputed_for.add(name)
            self.recompute(name)
        try:
            return slot.tensors.pop(name)
        except KeyError:
            raise LAB.CheckpointError("already unpacked once") from None

    def recompute(self, name):
        waiting = [ref() for ref in self.slots][::-1]

        def collect(tensor):
            alias = tensor.detach() if tensor.requires_grad else tensor
            slot = waiting.pop() if waiting else None
            if slot is not None:
                slot.tensors[name] = alias
            del slot
            if self.early_stop and not waiting:
                raise LAB.StopEarlyError
            return alias

        args, kwargs = self.bring_back()
        try:
            with torch.enable_grad(), saved_tensors_hooks(collect, lambda alias: alias):
                self.run(*args, **kwargs)
        except LAB.StopEarlyError:
            pass
