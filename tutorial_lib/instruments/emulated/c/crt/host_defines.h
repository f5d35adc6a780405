/* The CUDA headers in PyTorch's wheels include this file, and no wheel that PyTorch needs holds it:
 * it belongs to NVIDIA's compiler. For a C compiler its marks mean nothing. */
#pragma once
#define __host__
#define __device__
#define __device_builtin__
#define __cudart_builtin__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define CUDARTAPI
