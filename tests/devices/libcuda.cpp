// A stand-in for NVIDIA's libcuda.so.1, for tests on machines without a GPU: the calls of edge_serve/devices/probe.py.
// STAND_IN_CUDA describes it, fields separated by spaces:
//   devices=2 version=13000 init=0 capability=8.7 integrated=0 memory=8589934592 crash=0 hang=0
// STAND_IN_CUDA_FILE names a file with fields that go first, so that a test changes the driver under a running server.
// init is the CUresult of cuInit. CUDA_VISIBLE_DEVICES is obeyed as far as a list of numbers.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

std::string field(const char *name, const char *otherwise) {
    const char *all = std::getenv("STAND_IN_CUDA"), *path = std::getenv("STAND_IN_CUDA_FILE");
    char first[256] = "";
    if (FILE *file = path ? std::fopen(path, "r") : nullptr) {
        first[std::fread(first, 1, sizeof first - 1, file)] = 0;
        std::fclose(file);
    }
    std::string text = std::string(" ") + first + " " + (all ? all : ""), key = std::string(" ") + name + "=";
    size_t at = text.find(key);
    if (at == std::string::npos) return otherwise;
    at += key.size();
    return text.substr(at, text.find(' ', at) - at);
}

long number(const char *name, const char *otherwise) { return std::atol(field(name, otherwise).c_str()); }

std::vector<int> visible() {
    int all = number("devices", "1");
    std::vector<int> found;
    const char *wanted = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) {
        for (int i = 0; i < all; i++) found.push_back(i);
        return found;
    }
    for (const char *at = wanted; *at;) {
        char *end;
        long one = std::strtol(at, &end, 10);
        if (end == at || one < 0 || one >= all) break;  // as CUDA: what follows an invalid number is hidden
        found.push_back(one);
        at = *end == ',' ? end + 1 : end;
    }
    return found;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
    if (number("crash", "0")) std::raise(SIGSEGV);
    if (number("hang", "0")) pause();
    long refused = number("init", "0");
    return refused ? refused : visible().empty() ? 100 : 0;
}
int cuDriverGetVersion(int *version) { *version = number("version", "13000"); return 0; }
int cuDeviceGetCount(int *count) { *count = visible().size(); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = visible().at(ordinal); return 0; }
int cuDeviceGetName(char *name, int length, int device) { std::snprintf(name, length, "Stand-in GPU %d", device); return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { std::memset(uuid, 0xA0 + device, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = number("memory", "8589934592"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
    std::string capability = field("capability", "8.7");
    size_t dot = capability.find('.');
    switch (attribute) {
        case 18: *value = number("integrated", "0"); return 0;
        case 75: *value = std::atoi(capability.c_str()); return 0;
        case 76: *value = std::atoi(capability.c_str() + dot + 1); return 0;
    }
    return 1;
}
int cuGetErrorName(int code, const char **name) {
    static const struct { int code; const char *name; } names[] = {
        {100, "CUDA_ERROR_NO_DEVICE"}, {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, {999, "CUDA_ERROR_UNKNOWN"}};
    for (auto &one : names)
        if (one.code == code) { *name = one.name; return 0; }
    return 1;
}

}  // extern "C"
