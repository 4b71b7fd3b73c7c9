// An execution context of the stand-in: shapes, addresses, and what an execution enqueues.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "device.hpp"
#include "interface.hpp"
#include "plan.hpp"

inline std::atomic<long> living{0};

// What `standInLiving` counts.
struct Counted {
    Counted() { living++; }
    Counted(const Counted &) = delete;
    ~Counted() { living--; }
};
struct CountedExecution : Execution, Counted {};

using Shape = std::vector<int64_t>;

inline Dims dims_of(const Shape &shape) {
    Dims made{int32_t(shape.size()), {}};
    for (size_t n = 0; n < shape.size() && n < 8; n++) made.sizes[n] = decltype(+made.sizes[0])(shape[n]);
    return made;
}
const Dims UNKNOWN{-1, {}};

inline int64_t volume(const Shape &shape) {
    int64_t product = 1;
    for (auto size : shape) product *= size < 0 ? 0 : size;
    return product;
}
inline bool is_dynamic(const Shape &shape) {
    for (auto size : shape)
        if (size < 0) return true;
    return false;
}

// The contexts of an engine by their profile. Before TensorRT 9 each profile has one context, if the shapes are dynamic.
class Profiles {
    std::mutex lock;
    std::map<int32_t, const void *> chosen;
    bool are_shared = STAND_IN_MAJOR >= 9;

public:
    explicit Profiles(const Plan &plan) {
        bool dynamic = false;
        for (auto &tensor : plan.tensors) dynamic = dynamic || is_dynamic(tensor.shape);
        are_shared = are_shared || !dynamic;
    }
    // False = another context has this profile.
    bool choose(const void *context, int32_t wanted) {
        std::lock_guard<std::mutex> guard(lock);
        auto found = chosen.find(wanted);
        if (!are_shared && found != chosen.end() && found->second != context) return false;
        remove(context);
        chosen[wanted] = context;
        return true;
    }
    void leave(const void *context) {
        std::lock_guard<std::mutex> guard(lock);
        remove(context);
    }

private:
    void remove(const void *context) {
        for (auto one = chosen.begin(); one != chosen.end();) one = one->second == context ? chosen.erase(one) : std::next(one);
    }
};

class Context : public ContextInterface, Counted {
    const Object<EngineInterface> &engine;
    const Plan &plan;
    Profiles &profiles;
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
    // Whether the shapes of the inputs go together.
    bool are_joinable() const {
        if (plan.op != "addsub" || lacks_shape() || shape_of(input("INPUT0")) == shape_of(input("INPUT1"))) return true;
        return refuse("getTensorShape: Error Code 7: Internal Error (condition '==' violated: broadcast dimensions must be "
                      "conformable)");
    }
    const void *place(const std::string &name) const {
        auto found = addresses.find(name);
        return found == addresses.end() ? nullptr : found->second;
    }
    void *target(const Tensor &tensor, const Shape &shape, void *stream);
    bool find_nonzero(void *stream);
    bool add_tasks(Execution &execution, void *stream);
    std::string missing() const;

public:
    Context(const Object<EngineInterface> &engine, const Plan &plan, Profiles &profiles, Logger &logger, void *memory)
        : engine(engine), plan(plan), profiles(profiles), logger(logger), memory(memory) {
        if (!profiles.choose(this, 0)) profile = -1;
    }
    ~Context() override {
        profiles.leave(this);
        device.release(memory);
    }

    const Object<EngineInterface> &getEngine() const noexcept override { return engine; }
    int32_t getOptimizationProfile() const noexcept override { return profile; }
    bool setOptimizationProfileAsync(int32_t wanted, void *) noexcept override {
        if (wanted < 0 || size_t(wanted) >= plan.profiles.size())
            return refuse("setOptimizationProfileAsync: Error Code 3: API Usage Error");
        if (!profiles.choose(this, wanted))
            return refuse("setOptimizationProfileAsync: Error Code 3: Internal Error (Profile " + std::to_string(wanted) +
                          " has been chosen by another IExecutionContext. Use another profileIndex or destroy the "
                          "IExecutionContext that use this profile.)");
        profile = wanted;
        shapes.clear();
        return true;
    }
    bool setInputShape(const char *name, const Dims &dims) noexcept override;
    Dims getTensorShape(const char *name) const noexcept override {
        auto tensor = plan.find(name);
        if (!tensor) return UNKNOWN;
        if (tensor->is_input) return dims_of(shape_of(*tensor));
        return are_joinable() ? dims_of(output_shape(*tensor)) : UNKNOWN;
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

inline bool Context::setInputShape(const char *name, const Dims &dims) noexcept {
    auto tensor = plan.find(name);
    auto low = engine.implementation->getProfileShape(name, profile, MIN);
    auto high = engine.implementation->getProfileShape(name, profile, MAX);
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
inline Shape Context::values_of(const Tensor &tensor) const {
    auto from = place(tensor.name);
    Shape found;
    for (int64_t n = 0; from && n < volume(tensor.shape); n++)
        found.push_back(tensor.type == 8 ? static_cast<const int64_t *>(from)[n] : static_cast<const int32_t *>(from)[n]);
    return found;
}

inline Shape Context::output_shape(const Tensor &tensor) const {
    if (plan.op == "nonzero" || lacks_shape()) return tensor.shape;
    if (tensor.is_shape) return tensor.shape;
    if (plan.op == "sized") {
        auto values = values_of(input("SIZE"));
        return values.empty() ? tensor.shape : values;
    }
    auto from = plan.op == "identity" || plan.op == "fail" ? "INPUT" + tensor.name.substr(6) : std::string("INPUT0");
    auto shape = shape_of(input(from));
    return plan.op == "rowsum" ? Shape{shape[0], 1} : shape;
}

inline std::string Context::missing() const {
    std::string names;
    for (auto &tensor : plan.tensors)
        if (!place(tensor.name) && !allocators.count(tensor.name)) names += (names.empty() ? "'" : ", '") + tensor.name + "'";
    return names;
}

// Where an output is written; null = its allocator has no memory.
inline void *Context::target(const Tensor &tensor, const Shape &shape, void *stream) {
    auto found = allocators.find(tensor.name);
    auto before = const_cast<void *>(place(tensor.name));
    if (found == allocators.end()) return before;
    auto made = found->second->reallocate(tensor.name.c_str(), before, volume(shape) * TYPES[tensor.type].bytes, stream);
    if (made) found->second->notifyShape(tensor.name.c_str(), dims_of(shape));
    else refuse("enqueueV3: Error Code 1: Myelin (Output allocator returned nullptr for tensor " + tensor.name + ")");
    return made;
}

// The one operation whose output's size the data decide, so the call waits for the device, as TensorRT does.
inline bool Context::find_nonzero(void *stream) {
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

inline bool Context::add_tasks(Execution &execution, void *stream) {
    execution.milliseconds = plan.milliseconds;
    for (auto &output : plan.tensors) {
        if (output.is_input) continue;
        auto shape = output_shape(output);
        auto made = target(output, shape, stream);
        if (!made) return false;
        if (output.is_shape) {  // the host computes it before the call returns
            auto values = output_shape(*plan.find("OUTPUT0"));
            std::vector<int32_t> narrow(values.begin(), values.end());
            const void *from = output.type == 3 ? static_cast<const void *>(narrow.data()) : values.data();
            memcpy(made, from, values.size() * TYPES[output.type].bytes);
            continue;
        }
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

inline bool Context::enqueueV3(void *stream) noexcept {
    auto unset = missing();
    if (!unset.empty() || lacks_shape())
        return refuse("enqueueV3: Error Code 3: API Usage Error (Parameter check failed, condition: "
                      "mContext.profileObliviousBindings.at(profileObliviousIndex) || getPtrOrNull(mOutputAllocators, "
                      "profileObliviousIndex): [" + unset + "])");
    if (!are_joinable()) return false;
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
