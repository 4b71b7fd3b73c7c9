// What plans compute, one element at a time: on the host, and with nvcc on the device.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __CUDACC__
#define ON_DEVICE __host__ __device__
#else
#define ON_DEVICE
#endif

// FP16, which rounds to the nearest, to even, as NumPy does
struct Half {
    uint16_t bits;

    Half() = default;
    ON_DEVICE Half(float value) {
        uint32_t word;
        memcpy(&word, &value, 4);
        uint32_t sign = word >> 16 & 0x8000, size = word & 0x7fffffff;
        if (size > 0x7f800000) bits = uint16_t(sign | 0x7e00);        // no number
        else if (size >= 0x477ff000) bits = uint16_t(sign | 0x7c00);  // infinite
        else if (size < 0x38800000) bits = uint16_t(sign | uint32_t(rintf(fabsf(value) * 16777216.0f)));
        else bits = uint16_t(sign | ((size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13));
    }
    ON_DEVICE operator float() const {
        uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
        if (!exponent) return (bits & 0x8000 ? -1.0f : 1.0f) * float(fraction) / 16777216.0f;
        uint32_t word = uint32_t(bits & 0x8000) << 16 | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
        float value;
        memcpy(&value, &word, 4);
        return value;
    }
};

enum Op : int32_t { COPY, ADD, SUBTRACT, ROW_SUM, ZERO, FAIL };

// One output. `count` has its elements, or of COPY its bytes; `row` the elements of a row of ROW_SUM.
struct Task {
    Op op;
    int32_t type;
    const void *first, *second;
    void *target;
    int64_t count, row;
};

template <typename T> ON_DEVICE void compute(const Task &task, int64_t n) {
    auto first = static_cast<const T *>(task.first), second = static_cast<const T *>(task.second);
    auto target = static_cast<T *>(task.target);
    if (task.op == ADD) target[n] = T(first[n] + second[n]);
    else if (task.op == SUBTRACT) target[n] = T(first[n] - second[n]);
    else if (task.op == ZERO) target[n] = T(0);
    else {
        auto sum = first[0] - first[0];
        for (int64_t m = 0; m < task.row; m++) sum += first[n * task.row + m];
        target[n] = T(sum);
    }
}

ON_DEVICE inline void element(const Task &task, int64_t n) {
    if (task.op == COPY) {
        static_cast<char *>(task.target)[n] = static_cast<const char *>(task.first)[n];
        return;
    }
    switch (task.type) {  // TensorRT's DataType; BF16 as its bits
    case 0: return compute<float>(task, n);
    case 1: return compute<Half>(task, n);
    case 2: return compute<int8_t>(task, n);
    case 3: return compute<int32_t>(task, n);
    case 4: return compute<bool>(task, n);
    case 5: return compute<uint8_t>(task, n);
    case 7: return compute<uint16_t>(task, n);
    default: return compute<int64_t>(task, n);
    }
}

struct Execution {
    std::vector<Task> tasks;
    int64_t milliseconds;
};
