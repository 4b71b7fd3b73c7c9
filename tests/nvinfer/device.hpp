// The device: its memory and its streams. The host has them from Python (`standInUse`), which calls `standInRun` and
// `standInRelease` in the order of a stream; until then everything runs at once. nvcc's has those of CUDA.

#pragma once

#include <cstdlib>

#include "operations.hpp"

extern "C" {
int standInRun(void *execution);
void standInRelease(void *execution);
}

// Each call but `count` and `allocate` returns a cudaError_t.
struct Device {
    int (*count)();
    void *(*allocate)(size_t);
    int (*release)(void *);
    int (*launch)(void *stream, void *execution);  // takes the execution
    int (*synchronize)(void *stream);
    int (*record)(void *event, void *stream);
    int (*copy)(void *target, const void *source, size_t bytes, void *stream);
};

#ifndef __CUDACC__

inline int launch_at_once(void *, void *execution) {
    int code = standInRun(execution);
    standInRelease(execution);
    return code;
}
inline int copy_at_once(void *target, const void *source, size_t bytes, void *) {
    memcpy(target, source, bytes);
    return 0;
}
inline Device device = {
    [] { return 1; },
    [](size_t size) { return std::malloc(size); },
    [](void *memory) { return std::free(memory), 0; },
    launch_at_once,
    [](void *) { return 0; },
    [](void *, void *) { return 0; },
    copy_at_once,
};
inline const char *text_of(int code) {
    return code == 2 ? "out of memory" : code == 700 ? "an illegal memory access was encountered" : "unspecified launch failure";
}

#else

__global__ void run_task(Task task) {
    if (task.op == FAIL) *static_cast<volatile int *>(nullptr) = 1;  // an illegal address
    int64_t n = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (n < task.count) element(task, n);
}
__global__ void wait_for(int64_t nanoseconds) {
    for (; nanoseconds > 0; nanoseconds -= 1000000) __nanosleep(1000000);
}
inline int launch_kernels(void *stream, void *execution) {
    auto &found = *static_cast<Execution *>(execution);
    auto on = static_cast<cudaStream_t>(stream);
    if (found.milliseconds) wait_for<<<1, 1, 0, on>>>(found.milliseconds * 1000000);
    for (auto &task : found.tasks)
        if (task.count > 0) run_task<<<unsigned((task.count + 255) / 256), 256, 0, on>>>(task);
    standInRelease(execution);
    return cudaGetLastError();
}
inline Device device = {
    [] { int count = 0; return cudaGetDeviceCount(&count) ? 0 : count; },
    [](size_t size) {
        void *made = nullptr;
        if (cudaMalloc(&made, size)) cudaGetLastError();  // or the next launch reports it
        return made;
    },
    [](void *memory) { return int(cudaFree(memory)); },
    launch_kernels,
    [](void *stream) { return int(cudaStreamSynchronize(static_cast<cudaStream_t>(stream))); },
    [](void *event, void *stream) { return int(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream))); },
    [](void *target, const void *source, size_t bytes, void *stream) {
        auto code = cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
        return int(code ? code : cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
    },
};
inline const char *text_of(int code) { return cudaGetErrorString(cudaError_t(code)); }

#endif
