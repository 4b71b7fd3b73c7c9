// A stand-in for libnvinfer, libnvonnxparser and libnvinfer_plugin under TensorRT's own Python bindings. It runs the plans of
// tests/stand_ins/plans.py, and refuses what the Python stand-in for `tensorrt` refuses, with the same texts.
//   STAND_IN_MAJOR    8, 10 or 11: which interface (interface.hpp)
//   STAND_IN_VERSION  the version that it compares with that of a plan

#include <chrono>
#include <thread>

#include "context.hpp"

namespace {

std::string first_two(const std::string &version) { return version.substr(0, version.find('.', version.find('.') + 1)); }
std::string environment(const char *name, const char *otherwise) {
    auto found = std::getenv(name);
    return found ? found : otherwise;
}

class Inspector : public InspectorInterface, Counted {
    std::string layer, all;

public:
    explicit Inspector(const Plan &plan) : layer("{\"Name\": \"" + plan.op + "\", \"LayerType\": \"StandIn\"}") {
        all = "{\"Layers\": [" + layer + "], \"Bindings\": [";
        for (auto &tensor : plan.tensors) all += (&tensor == &plan.tensors[0] ? "\"" : ", \"") + tensor.name + "\"";
        all += "]}";
    }
    const char *getLayerInformation(int32_t, int32_t) const noexcept override { return layer.c_str(); }
    const char *getEngineInformation(int32_t) const noexcept override { return all.c_str(); }
};

class Engine : public EngineInterface, Counted {
    Plan plan;
    Profiles profiles;
    Logger &logger;
    // of shape tensors, as the calls up to TensorRT 10 want them
    std::map<std::string, std::vector<std::vector<std::vector<int32_t>>>> values;

    template <typename T, typename F> T about(const char *name, T otherwise, F get) const {
        auto found = plan.find(name);
        return found ? get(*found) : otherwise;
    }
    const Shape *range(const char *name, int32_t profile, Selector which) const {
        if (profile < 0 || size_t(profile) >= plan.profiles.size()) return nullptr;
        auto found = plan.profiles[profile].find(name);
        return found == plan.profiles[profile].end() ? nullptr : &found->second.at(which);
    }

public:
    Object<EngineInterface> *self = nullptr;

    Engine(Plan content, Logger &logger) : plan(std::move(content)), profiles(plan), logger(logger) {
        for (auto &tensor : plan.tensors)
            if (tensor.is_shape)
                for (auto &profile : plan.profiles) {
                    values[tensor.name].emplace_back();
                    for (auto &one : profile[tensor.name])
                        values[tensor.name].back().emplace_back(one.begin(), one.end());
                }
    }

    int32_t getNbLayers() const noexcept override { return 1; }
    Object<ContextInterface> *createExecutionContext(int32_t) noexcept override {
        auto memory = device.allocate(plan.device_memory < 1 ? 1 : size_t(plan.device_memory));
        if (!memory) {
            logger.log(ERROR, "Error Code 2: OutOfMemory (no memory for the execution context)");
            return nullptr;
        }
        return new Object<ContextInterface>(new Context(*self, plan, profiles, logger, memory));
    }
    const char *getName() const noexcept override { return plan.name.c_str(); }
    int32_t getNbOptimizationProfiles() const noexcept override { return int32_t(plan.profiles.size()); }
    Object<InspectorInterface> *createEngineInspector() const noexcept override {
        return new Object<InspectorInterface>(new Inspector(plan));
    }
    Dims getTensorShape(const char *name) const noexcept override {
        return about(name, UNKNOWN, [](const Tensor &tensor) { return dims_of(tensor.shape); });
    }
    int32_t getTensorDataType(const char *name) const noexcept override {
        return about(name, 0, [](const Tensor &tensor) { return tensor.type; });
    }
    int32_t getTensorLocation(const char *name) const noexcept override { return isShapeInferenceIO(name); }
    bool isShapeInferenceIO(const char *name) const noexcept override {
        return about(name, false, [](const Tensor &tensor) { return tensor.is_shape; });
    }
    int32_t getTensorIOMode(const char *name) const noexcept override {
        return about(name, 0, [](const Tensor &tensor) { return tensor.is_input ? 1 : 2; });
    }
    int32_t getTensorComponentsPerElement(const char *name) const noexcept override {
        return about(name, -1, [](const Tensor &tensor) { return tensor.components; });
    }
    int32_t getTensorFormat(const char *name) const noexcept override {
        return about(name, 0, [](const Tensor &tensor) { return tensor.format; });
    }
    int32_t getTensorVectorizedDim(const char *name) const noexcept override {
        return about(name, -1, [](const Tensor &tensor) { return tensor.vectorized_dim; });
    }
#if STAND_IN_MAJOR >= 10
    int32_t getTensorComponentsPerElementV2(const char *name, int32_t) const noexcept override {
        return getTensorComponentsPerElement(name);
    }
    int32_t getTensorFormatV2(const char *name, int32_t) const noexcept override { return getTensorFormat(name); }
    int32_t getTensorVectorizedDimV2(const char *name, int32_t) const noexcept override { return getTensorVectorizedDim(name); }
    int64_t getDeviceMemorySizeV2() const noexcept override { return plan.device_memory; }
#endif
    Dims getProfileShape(const char *name, int32_t profile, Selector which) const noexcept override {
        auto found = range(name, profile, which);
        return found ? dims_of(*found) : UNKNOWN;
    }
    int32_t getNbIOTensors() const noexcept override { return int32_t(plan.tensors.size()); }
    const char *getIOTensorName(int32_t index) const noexcept override {
        return index < 0 || size_t(index) >= plan.tensors.size() ? nullptr : plan.tensors[index].name.c_str();
    }
#if STAND_IN_MAJOR < 11
    size_t getDeviceMemorySize() const noexcept override { return size_t(plan.device_memory); }
    bool hasImplicitBatchDimension() const noexcept override { return false; }
#endif
#if STAND_IN_MAJOR < 10
    int32_t getNbBindings() const noexcept override { return getNbIOTensors() * getNbOptimizationProfiles(); }
    int32_t getBindingIndex(const char *name) const noexcept override {
        auto found = plan.find(name);
        return found ? int32_t(found - plan.tensors.data()) : -1;
    }
    bool bindingIsInput(int32_t binding) const noexcept override { return plan.tensors[binding].is_input; }
    Dims getBindingDimensions(int32_t binding) const noexcept override { return dims_of(plan.tensors[binding].shape); }
    bool isShapeBinding(int32_t binding) const noexcept override { return plan.tensors[binding].is_shape; }
    const int32_t *getProfileShapeValues(int32_t profile, int32_t input, Selector which) const noexcept override {
        auto name = getIOTensorName(input);
        return name && values.count(name) && range(name, profile, which) ? values.at(name)[profile][which].data() : nullptr;
    }
#elif STAND_IN_MAJOR < 11
    const int32_t *getProfileTensorValues(const char *name, int32_t profile, Selector which) const noexcept override {
        return range(name, profile, which) ? values.at(name)[profile][which].data() : nullptr;
    }
#else
    const int64_t *getProfileTensorValuesV2(const char *name, int32_t profile, Selector which) const noexcept override {
        auto found = range(name, profile, which);
        return found ? found->data() : nullptr;
    }
#endif
};

class Runtime : public RuntimeInterface, Counted {
    Logger &logger;
    bool host_code = false;
    int32_t core = -1;

public:
    explicit Runtime(Logger &logger) : logger(logger) {}
    Object<EngineInterface> *deserializeCudaEngine(const void *content, size_t size) noexcept override;
    void setDLACore(int32_t wanted) noexcept override { core = wanted; }
    int32_t getDLACore() const noexcept override { return core; }
    int32_t getNbDLACores() const noexcept override { return 2; }
    Logger *getLogger() const noexcept override { return &logger; }
    void setEngineHostCodeAllowed(bool allowed) noexcept override { host_code = allowed; }
    bool getEngineHostCodeAllowed() const noexcept override { return host_code; }
};

Object<EngineInterface> *Runtime::deserializeCudaEngine(const void *content, size_t size) noexcept {
    auto start = static_cast<const char *>(content);
    auto head = std::strlen(MAGIC);
    std::string text;
    if (size < head || std::memcmp(start, MAGIC, head))
        text = "Error Code 1: Serialization (Serialization assertion stdArchiveReader.cpp:: magicTagRead == kMAGIC_TAG failed."
               "Magic tag does not match)";
    else
        try {
            Plan plan(start + head, size - head);
            auto wanted = environment("STAND_IN_CAPABILITY", "8.7");
            if (first_two(plan.version) != first_two(STAND_IN_VERSION) && !plan.version_compatible)
                text = "Error Code 6: API Usage Error (The engine plan file is not compatible with this version of TensorRT, expecting "
                       "library version " STAND_IN_VERSION " got " + plan.version + ", please rebuild.)";
            else if (plan.version_compatible && !host_code)
                text = "Error Code 6: API Usage Error (Plan has host code, but engine_host_code_allowed is false)";
            else if (plan.capability != wanted)
                text = "Error Code 6: API Usage Error (The engine plan file is generated on an incompatible device, expecting compute " +
                       wanted + " got compute " + plan.capability + ", please rebuild.)";
            else {
                auto engine = new Engine(std::move(plan), logger);
                return engine->self = new Object<EngineInterface>(engine);
            }
        } catch (const std::exception &) {
            text = "Error Code 1: Serialization (unexpected end of archive)";
        }
    logger.log(ERROR, ("IRuntime::deserializeCudaEngine: " + text).c_str());
    return nullptr;
}

}  // namespace

extern "C" {

int standInRun(void *execution) {
    auto &found = *static_cast<Execution *>(execution);
    std::this_thread::sleep_for(std::chrono::milliseconds(found.milliseconds));
    for (auto &task : found.tasks) {
        if (task.op == FAIL) return 700;
        if (task.op == COPY) std::memcpy(task.target, task.first, size_t(task.count));
        else
            for (int64_t n = 0; n < task.count; n++) element(task, n);
    }
    return 0;
}
void standInRelease(void *execution) { delete static_cast<CountedExecution *>(static_cast<Execution *>(execution)); }
// objects that are not deleted: runtimes, engines, contexts, inspectors, executions
long standInLiving() { return living; }
#ifndef __CUDACC__
void standInUse(const Device *found) { device = *found; }
#endif

void *createInferRuntime_INTERNAL(void *logger, int32_t) {
    auto &log = *static_cast<Logger *>(logger);
    if (device.count() < 1) {
        log.log(INTERNAL_ERROR, "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure with error: 100)");
        return nullptr;
    }
    return new Object<RuntimeInterface>(new Runtime(log));
}
// what a runtime without a builder lacks
void *createInferBuilder_INTERNAL(void *, int32_t) { return nullptr; }
void *createInferRefitter_INTERNAL(void *, void *, int32_t) { return nullptr; }
void *createNvOnnxParser_INTERNAL(void *, void *, int32_t) { return nullptr; }
void *createNvOnnxParserRefitter_INTERNAL(void *, void *, int32_t) { return nullptr; }
int32_t getNvOnnxParserVersion() { return STAND_IN_MAJOR * 10000; }
void *getPluginRegistry() { return nullptr; }
void *getBuilderPluginRegistry(int32_t) { return nullptr; }
bool initLibNvInferPlugins(void *, const char *) { return true; }
#if STAND_IN_MAJOR < 10  // libnvparsers: Caffe and UFF
void *createUffParser() __asm__("_ZN11nvuffparser15createUffParserEv");
void *createUffParser() { return nullptr; }
void makeFieldMap() __asm__("_ZN11nvuffparser8FieldMapC1EPKcPKvNS_9FieldTypeEi");
void makeFieldMap() {}
void *createCaffeParser() __asm__("_ZN14nvcaffeparser117createCaffeParserEv");
void *createCaffeParser() { return nullptr; }
void shutdownProtobufLibrary() __asm__("_ZN14nvcaffeparser123shutdownProtobufLibraryEv");
void shutdownProtobufLibrary() {}
#endif

}  // extern "C"
