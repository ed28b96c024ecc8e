"""What programs print when memory runs out or a peer is gone, shortened where marked with an ellipsis.

PyTorch's out-of-memory texts with an issue number were posted there; gloo's and the CPU allocator's were printed by
torch 2.13.0. The others are composed after the format in the named source file.
"""

# pytorch/pytorch issue 16417, torch 1.0
TORCH_1_0 = (
    "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; "
    "9.28 GiB free; 4.68 MiB cached)"
)
# pytorch/pytorch issue 59778, torch 1.8
TORCH_1_8 = (
    "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated; "
    "3.03 GiB free; 1.24 GiB reserved in total by PyTorch)"
)
# torch 2.1: "capacty", without this process's share (wxian3/NeuroLens issue 2)
TORCH_2_1 = (
    "CUDA out of memory. Tried to allocate 55.57 GiB. GPU 0 has a total capacty of 12.00 GiB of which 9.02 GiB is "
    "free. Of the allocated memory 984.52 MiB is allocated by PyTorch, and 463.48 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation."
)
# torch 2.5 and later (murong-xu/CADS issue 4)
TORCH_2_5 = (
    "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of which 12.73 GiB is "
    "free. Including non-PyTorch memory, this process has 18.73 GiB memory in use. Of the allocated memory 9.08 GiB is "
    "allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation ..."
)
# the same under set_per_process_memory_fraction, and beside another process: after c10/cuda/CUDACachingAllocator.cpp
TORCH_LIMITED = (
    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 139.80 GiB of which 60.00 GiB is "
    "free. Process 4242 has 70.00 GiB memory in use. Including non-PyTorch memory, this process has 9.80 GiB memory in "
    "use. 10.00 GiB allowed; Of the allocated memory 9.00 GiB is allocated by PyTorch, with 64.00 MiB allocated in "
    "private pools (e.g., CUDA Graphs), and 200.00 MiB is reserved by PyTorch but unallocated. ..."
)
TORCH_BYTES = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 4.00 GiB of which 0 bytes is free. "
    "Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of the allocated memory 0 bytes is "
    "allocated by PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated."
)
TORCH_ABSURD = "CUDA out of memory. Tried to allocate more than 1EB memory."

CPU_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:122] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "1073741824 bytes. Error code 12 (Cannot allocate memory)"
)
NUMPY = "Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"

# after aten/src/ATen/cuda/CUDAContext.cpp
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
# a context that finds no room: raised as torch.AcceleratorError
CUDA_PLAIN = (
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect."
)
# after torch/csrc/distributed/c10d/NCCLUtils.cpp, which adds NCCL's own last error
NCCL_REMOTE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited or there was a "
    "network error, NCCL version 2.28.9\nncclRemoteError: A call failed possibly due to a network error or a remote "
    "process exiting prematurely."
)
NCCL_SYSTEM = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed or device error.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-..."
)
NCCL_MEMORY = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'"
)
GLOO_CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:38032"
GLOO_RESET = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:5631: Connection reset by peer"
)
BAD_ALLOC_ABORT = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
# after aten/src/ATen/cuda/CachingHostAllocator.cpp
PINNED = "CUDA error: out of memory\nat::cuda::CachingHostAllocator: cudaHostAlloc of 8589934592 bytes failed"
