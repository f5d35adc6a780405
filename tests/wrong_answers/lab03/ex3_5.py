"""A region of the graph: several backwards, early stop, nesting."""

import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks

from wrong_answers import right, solved, wrong

LAB = solved("lab03")


class Base(LAB.Region):
    """The solution taken apart, so that an answer can change one piece."""

    def name(self):
        return LAB.current_backward()

    def store(self, number, alias, name):
        slot = self.slots[number]() if number < len(self.slots) else None
        if slot is not None:
            slot.tensors[name] = alias

    def is_last(self, number):
        return self.early_stop and number + 1 == len(self.slots)

    def fill(self, number, alias, name):
        self.store(number, alias, name)
        if self.is_last(number):
            raise LAB.StopEarlyError

    def unpack(self, slot):
        name = self.name()
        if name not in self.recomputed_for:
            self.recompute(name)
            self.recomputed_for.add(name)
        return self.take(slot, name)

    def take(self, slot, name):
        if name not in slot.tensors:
            raise LAB.CheckpointError("this backward has read that tensor before")
        return slot.tensors.pop(name)


@wrong("recompute once for each backward, and note its name")
class RecomputesForEveryTensor(Base):
    def unpack(self, slot):
        name = self.name()
        self.recompute(name)
        return slot.tensors.pop(name)


@wrong("recompute for each backward, and note its name")
class KeepsWhatItHas(Base):
    """Recomputes where a slot is empty, under one name for all backwards."""

    def name(self):
        return "now"

    def unpack(self, slot):
        if "now" not in slot.tensors:
            self.recompute("now")
        return slot.tensors.pop("now")


@wrong("stop when the last slot is filled")
class NeverStops(Base):
    def is_last(self, number):
        return False


@wrong("the whole function is to be run again then")
class AlwaysStops(Base):
    def is_last(self, number):
        return number + 1 == len(self.slots)


@wrong("the last slot is dead there")
class StopsAtTheLastOneAlive(Base):
    def is_last(self, number):
        alive = [slot() is not None for slot in self.slots[number + 1 :]]
        return self.early_stop and not any(alive)


@wrong("'NoneType' object has no attribute")
class FillsTheDead(Base):
    def store(self, number, alias, name):
        if number < len(self.slots):
            self.slots[number]().tensors[name] = alias


@wrong("IndexError: ")
class TrustsTheNumber(Base):
    def store(self, number, alias, name):
        slot = self.slots[number]()
        if slot is not None:
            slot.tensors[name] = alias


@wrong("unpack takes the tensor out of its slot")
class HandsOutAndKeeps(Base):
    def take(self, slot, name):
        return slot.tensors[name]


@wrong("and your region gave it out twice")
class RecomputesWhereNothingIsLeft(Base):
    def take(self, slot, name):
        if name not in slot.tensors:
            self.recompute(name)
        return slot.tensors.pop(name)


@wrong("look into the slot before you take out")
class LooksIntoNoSlot(Base):
    def take(self, slot, name):
        return slot.tensors.pop(name)


@wrong("fill only slots that are alive, and hold none yourself")
class HoldsItsSlots(Base):
    def pack(self, tensor):
        slot = super().pack(tensor)
        self.__dict__.setdefault("held", []).append(slot)
        return slot

    def store(self, number, alias, name):
        if number < len(self.held):
            self.held[number].tensors[name] = alias


@wrong("does anything beside its slot hold a recomputed tensor?")
class KeepsTheTensorItself(Base):
    def recompute(self, name):
        numbers = iter(range(10**6))

        def collect(tensor):
            self.fill(next(numbers), tensor, name)
            return tensor

        args, kwargs = self.bring_back()
        hooks = saved_tensors_hooks(collect, lambda tensor: tensor)
        with contextlib.suppress(LAB.StopEarlyError), torch.enable_grad(), hooks:
            self.run(*args, **kwargs)


@wrong("mat1 and mat2 shapes cannot be multiplied")
class NumbersOnlyTheLiving(Base):
    """Goes through the slots that are left, as if what is freed were not saved again."""

    def recompute(self, name):
        self.alive = [slot for slot in (ref() for ref in self.slots) if slot is not None]
        super().recompute(name)
        del self.alive

    def store(self, number, alias, name):
        if number < len(self.alive):
            self.alive[number].tensors[name] = alias


@right
class TakenApart(Base):
    pass


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
