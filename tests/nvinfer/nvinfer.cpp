// A stand-in for libnvinfer, libnvonnxparser and libnvinfer_plugin under TensorRT's own Python bindings. It runs the plans of
// tests/stand_ins/plans.py, and refuses what the Python stand-in for `tensorrt` refuses, with the same texts.
//   STAND_IN_MAJOR    8, 10 or 11: which interface (interface.hpp)
//   STAND_IN_VERSION  the version that it compares with that of a plan

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "device.hpp"
#include "interface.hpp"
#include "plan.hpp"

namespace {

std::atomic<long> living{0};

// What `standInLiving` counts.
struct Counted {
    Counted() { living++; }
    Counted(const Counted &) = delete;
    ~Counted() { living--; }
};
struct CountedExecution : Execution, Counted {};

using Shape = std::vector<int64_t>;

Dims dims_of(const Shape &shape) {
    Dims made{int32_t(shape.size()), {}};
    for (size_t n = 0; n < shape.size() && n < 8; n++) made.sizes[n] = decltype(+made.sizes[0])(shape[n]);
    return made;
}
const Dims UNKNOWN{-1, {}};

int64_t volume(const Shape &shape) {
    int64_t product = 1;
    for (auto size : shape) product *= size < 0 ? 0 : size;
    return product;
}
bool is_dynamic(const Shape &shape) {
    for (auto size : shape)
        if (size < 0) return true;
    return false;
}
std::string first_two(const std::string &version) { return version.substr(0, version.find('.', version.find('.') + 1)); }
std::string environment(const char *name, const char *otherwise) {
    auto found = std::getenv(name);
    return found ? found : otherwise;
}

class Engine;

class Context : public ContextInterface, Counted {
    const Engine &engine;
    const Plan &plan;
    Logger &logger;
    void *memory, *consumed = nullptr;
    int32_t profile = 0;
    std::map<std::string, Shape> shapes;
    std::map<std::string, void *> addresses;
    std::map<std::string, OutputAllocator *> allocators;

    bool refuse(const std::string &text) const {
        logger.log(ERROR, ("IExecutionContext::" + text).c_str());
        return false;
    }
    Shape shape_of(const Tensor &tensor) const {
        auto found = shapes.find(tensor.name);
        return found == shapes.end() ? tensor.shape : found->second;
    }
    const Tensor &input(const std::string &name) const { return *plan.find(name); }
    Shape values_of(const Tensor &tensor) const;
    bool lacks_shape() const {
        for (auto &tensor : plan.tensors)
            if (tensor.is_input && is_dynamic(shape_of(tensor))) return true;
        return false;
    }
    Shape output_shape(const Tensor &tensor) const;
    const void *place(const std::string &name) const {
        auto found = addresses.find(name);
        return found == addresses.end() ? nullptr : found->second;
    }
    void *target(const Tensor &tensor, const Shape &shape, void *stream);
    bool find_nonzero(void *stream);
    bool add_tasks(Execution &execution, void *stream);
    std::string missing() const;

public:
    Context(const Engine &engine, const Plan &plan, Logger &logger, void *memory)
        : engine(engine), plan(plan), logger(logger), memory(memory) {}
    ~Context() override { device.release(memory); }

    const Object<EngineInterface> &getEngine() const noexcept override;
    int32_t getOptimizationProfile() const noexcept override { return profile; }
    bool setOptimizationProfileAsync(int32_t wanted, void *) noexcept override {
        if (wanted < 0 || size_t(wanted) >= plan.profiles.size())
            return refuse("setOptimizationProfileAsync: Error Code 3: API Usage Error");
        profile = wanted;
        shapes.clear();
        return true;
    }
    bool setInputShape(const char *name, const Dims &dims) noexcept override;
    Dims getTensorShape(const char *name) const noexcept override {
        auto tensor = plan.find(name);
        return !tensor ? UNKNOWN : dims_of(tensor->is_input ? shape_of(*tensor) : output_shape(*tensor));
    }
    bool setTensorAddress(const char *name, void *address) noexcept override {
        addresses[name] = address;
        return true;
    }
    const void *getTensorAddress(const char *name) const noexcept override { return place(name); }
    int32_t inferShapes(int32_t most, const char **names) noexcept override {
        int32_t count = 0;
        for (auto &tensor : plan.tensors)
            if (tensor.is_input && is_dynamic(shape_of(tensor)) && count < most) names[count++] = tensor.name.c_str();
        return count;
    }
    bool setInputConsumedEvent(void *event) noexcept override {
        consumed = event;
        return true;
    }
    void *getInputConsumedEvent() const noexcept override { return consumed; }
    bool setOutputAllocator(const char *name, OutputAllocator *allocator) noexcept override {
        allocators[name] = allocator;
        return true;
    }
    OutputAllocator *getOutputAllocator(const char *name) noexcept override { return allocators[name]; }
    bool enqueueV3(void *stream) noexcept override;
};

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

    Engine(Plan content, Logger &logger) : plan(std::move(content)), logger(logger) {
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
        return new Object<ContextInterface>(new Context(*this, plan, logger, memory));
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

const Object<EngineInterface> &Context::getEngine() const noexcept { return *engine.self; }

bool Context::setInputShape(const char *name, const Dims &dims) noexcept {
    auto tensor = plan.find(name);
    auto low = engine.getProfileShape(name, profile, MIN), high = engine.getProfileShape(name, profile, MAX);
    if (tensor && low.count < 0) low = high = dims_of(tensor->shape);  // a static input needs no profile
    bool fits = tensor && tensor->is_input && dims.count == low.count;
    for (int32_t n = 0; fits && n < dims.count; n++) fits = low.sizes[n] <= dims.sizes[n] && dims.sizes[n] <= high.sizes[n];
    if (!fits)
        return refuse("setInputShape: Error Code 3: API Usage Error (Parameter check failed, condition: engineDims.d[i] == dims.d[i] "
                      "Static dimension mismatch while setting input shape)");
    shapes[name] = Shape(dims.sizes, dims.sizes + dims.count);
    return true;
}

// The values of a shape tensor, which lie in host memory; none = they are not set.
Shape Context::values_of(const Tensor &tensor) const {
    auto from = place(tensor.name);
    Shape found;
    for (int64_t n = 0; from && n < volume(tensor.shape); n++)
        found.push_back(tensor.type == 8 ? static_cast<const int64_t *>(from)[n] : static_cast<const int32_t *>(from)[n]);
    return found;
}

Shape Context::output_shape(const Tensor &tensor) const {
    if (plan.op == "nonzero" || lacks_shape()) return tensor.shape;
    if (plan.op == "sized") {
        auto values = values_of(input("SIZE"));
        return values.empty() ? tensor.shape : values;
    }
    auto from = plan.op == "identity" || plan.op == "fail" ? "INPUT" + tensor.name.substr(6) : std::string("INPUT0");
    auto shape = shape_of(input(from));
    return plan.op == "rowsum" ? Shape{shape[0], 1} : shape;
}

std::string Context::missing() const {
    std::string names;
    for (auto &tensor : plan.tensors)
        if (!place(tensor.name) && !allocators.count(tensor.name)) names += (names.empty() ? "'" : ", '") + tensor.name + "'";
    return names;
}

// Where an output is written; null = its allocator has no memory.
void *Context::target(const Tensor &tensor, const Shape &shape, void *stream) {
    auto found = allocators.find(tensor.name);
    auto before = const_cast<void *>(place(tensor.name));
    if (found == allocators.end()) return before;
    auto made = found->second->reallocate(tensor.name.c_str(), before, volume(shape) * TYPES[tensor.type].bytes, stream);
    if (made) found->second->notifyShape(tensor.name.c_str(), dims_of(shape));
    else refuse("enqueueV3: Error Code 1: Myelin (Output allocator returned nullptr for tensor " + tensor.name + ")");
    return made;
}

// The one operation whose output's size the data decide, so the call waits for the device, as TensorRT does.
bool Context::find_nonzero(void *stream) {
    auto &from = input("INPUT0");
    auto shape = shape_of(from);
    std::vector<float> data(volume(shape));
    auto code = device.synchronize(stream);
    if (!code) code = device.copy(data.data(), place("INPUT0"), data.size() * 4, stream);
    Shape indices;
    for (size_t n = 0; n < data.size(); n++)
        if (data[n] != 0) indices.push_back(int64_t(n));
    int64_t rank = int64_t(shape.size()), count = int64_t(indices.size());
    Shape rows(indices.size() * shape.size());
    for (int64_t n = 0; n < count; n++)
        for (int64_t axis = rank - 1, rest = indices[n]; axis >= 0; rest /= shape[axis--]) rows[axis * count + n] = rest % shape[axis];
    auto &output = *plan.find("OUTPUT0");
    auto made = target(output, {rank, count}, stream);
    if (!made) return false;
    std::vector<int32_t> narrow(rows.begin(), rows.end());
    const void *from_here = output.type == 3 ? static_cast<const void *>(narrow.data()) : rows.data();
    if (!code && count) code = device.copy(made, from_here, rows.size() * TYPES[output.type].bytes, stream);
    return !code || refuse(std::string("enqueueV3: Error Code 1: Cuda Runtime (") + text_of(code) + ")");
}

bool Context::add_tasks(Execution &execution, void *stream) {
    execution.milliseconds = plan.milliseconds;
    for (auto &output : plan.tensors) {
        if (output.is_input) continue;
        auto shape = output_shape(output);
        auto made = target(output, shape, stream);
        if (!made) return false;
        Task task{ZERO, output.type, nullptr, nullptr, made, volume(shape), 0};
        if (plan.op == "fail") task.op = FAIL;
        if (plan.op == "identity") {
            task.op = COPY;
            task.first = place("INPUT" + output.name.substr(6));
            task.count *= TYPES[output.type].bytes;
        } else if (plan.op != "sized") {
            task.first = place("INPUT0");
            task.second = place("INPUT1");
        }
        if (plan.op == "addsub") task.op = output.name == "OUTPUT0" ? ADD : SUBTRACT;
        if (plan.op == "rowsum") {
            task.op = ROW_SUM;
            task.row = task.count ? volume(shape_of(input("INPUT0"))) / task.count : 0;
        }
        execution.tasks.push_back(task);
    }
    return true;
}

bool Context::enqueueV3(void *stream) noexcept {
    auto unset = missing();
    if (!unset.empty() || lacks_shape())
        return refuse("enqueueV3: Error Code 3: API Usage Error (Parameter check failed, condition: "
                      "mContext.profileObliviousBindings.at(profileObliviousIndex) || getPtrOrNull(mOutputAllocators, "
                      "profileObliviousIndex): [" + unset + "])");
    if (plan.op == "nonzero") {
        if (!find_nonzero(stream)) return false;
    } else {
        auto execution = std::make_unique<CountedExecution>();
        if (!add_tasks(*execution, stream)) return false;
        if (auto code = device.launch(stream, static_cast<Execution *>(execution.release())))
            return refuse(std::string("enqueueV3: Error Code 1: Cuda Runtime (") + text_of(code) + ")");
    }
    if (consumed) device.record(consumed, stream);
    return true;
}

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
