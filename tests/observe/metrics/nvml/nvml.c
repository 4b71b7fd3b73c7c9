/* A stand-in for libnvidia-ml: one board with 16 GiB, of which 1 GiB is allocated and 0.5 GiB reserved by the driver.

   -DOLD: as a driver before R510, which lacks the functions of later ones. -DNEWEST: as the one of CUDA 14, which lacks
   those that nvml.h announces as removed there. Names and layouts: nvml.h. */
#include <string.h>

typedef unsigned long long u64;
typedef void *device;
#define GIB (1ULL << 30)
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct process { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
struct utilization { unsigned gpu, memory; };
struct temperature { unsigned version, sensor; int celsius; };

int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) { return *found = (device)1, 0; }
int nvmlDeviceGetUUID(device of, char *uuid, unsigned size) { return strcpy(uuid, "GPU-8ec7"), 0; }
int nvmlDeviceGetUtilizationRates(device of, struct utilization *found) { return found->gpu = 42, 0; }
int nvmlDeviceGetPowerUsage(device of, unsigned *milliwatts) { return *milliwatts = 61500, 0; }
int nvmlDeviceGetPowerManagementLimit(device of, unsigned *milliwatts) { return NOT_SUPPORTED; }
int nvmlDeviceGetTotalEnergyConsumption(device of, u64 *millijoules) { return *millijoules = 5000, 0; }

/* the driver's part counts as used */
int nvmlDeviceGetMemoryInfo(device of, struct memory *found) {
    *found = (struct memory){16 * GIB, 16 * GIB - GIB - GIB / 2, GIB + GIB / 2};
    return 0;
}

#ifndef NEWEST
int nvmlDeviceGetTemperature(device of, int sensor, unsigned *celsius) { return *celsius = 71, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device of, u64 *bits) { return *bits = 0x04, 0; }
#endif

#ifndef OLD
int nvmlDeviceGetTemperatureV(device of, struct temperature *found) { return found->celsius = 71, 0; }
int nvmlDeviceGetCurrentClocksEventReasons(device of, u64 *bits) { return *bits = 0x04, 0; }

int nvmlDeviceGetMemoryInfo_v2(device of, struct memory_v2 *found) {
    if (found->version != 0x02000028)
        return 25; /* ARGUMENT_VERSION_MISMATCH */
    *found = (struct memory_v2){found->version, 16 * GIB, GIB / 2, 16 * GIB - GIB - GIB / 2, GIB};
#ifdef USED_WITH_RESERVE
    found->used += found->reserved;
#endif
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device of, unsigned *count, struct process *found) {
    unsigned room = *count;
    *count = 1;
    if (room < 1)
        return INSUFFICIENT_SIZE;
    found[0] = (struct process){41, GIB, 0, 0};
    return 0;
}
#endif
