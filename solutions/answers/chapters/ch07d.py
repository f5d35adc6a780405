"""Chapter 07d: the two hooks that move a tensor to the host and back."""

from solutions.answers import right, wrong

FILLINGS = {
    "offloading": {
        "keeps_a_copy_on_the_device": wrong(
            "pack gives a Tensor, and has to give an array", ".numpy().copy()", ".clone()"
        ),
        "shares_the_tensors_memory": wrong(
            "The array has the tensor's own memory", ".numpy().copy()", ".numpy()"
        ),
        "shares_the_arrays_memory": wrong("The tensor has the array's memory", ".clone()", ""),
        "forgets_to_count": wrong(
            "are [16] in `copied`, not []", "copied.append(tensor.nbytes)", "pass"
        ),
        "counts_numbers": wrong("are [16] in `copied`, not [4]", "tensor.nbytes", "tensor.numel()"),
        "does_not_detach": wrong("on Tensor that requires grad", ".detach()", ""),
        "goes_by_torch_tensor": right("torch.from_numpy(array).clone()", "torch.tensor(array)"),
    },
}
