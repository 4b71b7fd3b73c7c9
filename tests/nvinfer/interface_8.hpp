// The interface of TensorRT 8.6 (interface.hpp). What takes the number of a binding is there for `get_profile_shape_input`.

#pragma once

struct Dims {
    int32_t count;
    int32_t sizes[8];
};

// ---- implemented by the caller -------------------------------------------------------------------------------------------

struct Logger {
    virtual void log(Severity severity, const char *text) noexcept = 0;
    virtual ~Logger() = default;
};

struct OutputAllocator {
    virtual int32_t version() const noexcept = 0;
    virtual void *reallocateOutput(const char *name, void *memory, uint64_t size, uint64_t alignment) noexcept = 0;
    virtual void notifyShape(const char *name, const Dims &dims) noexcept = 0;
    virtual ~OutputAllocator() = default;

    void *reallocate(const char *name, void *memory, uint64_t size, void *) { return reallocateOutput(name, memory, size, 256); }
};

// ---- implemented here ----------------------------------------------------------------------------------------------------

struct RuntimeInterface : Root {
    virtual Object<EngineInterface> *deserializeCudaEngine(const void *plan, size_t size) noexcept = 0;
    virtual void setDLACore(int32_t core) noexcept = 0;
    virtual int32_t getDLACore() const noexcept = 0;
    virtual int32_t getNbDLACores() const noexcept = 0;
    SLOT(setGpuAllocator)
    SLOT(setErrorRecorder)
    SLOT(getErrorRecorder)
    virtual Logger *getLogger() const noexcept = 0;
    SLOT(setMaxThreads)
    SLOT(getMaxThreads)
    SLOT(setTemporaryDirectory)
    SLOT(getTemporaryDirectory)
    SLOT(setTempfileControlFlags)
    SLOT(getTempfileControlFlags)
    SLOT(getPImpl)
    SLOT(getPluginRegistry)
    SLOT(setPluginRegistryParent)
    SLOT(loadRuntime)
    virtual void setEngineHostCodeAllowed(bool allowed) noexcept = 0;
    virtual bool getEngineHostCodeAllowed() const noexcept = 0;
};

struct EngineInterface : Root {
    virtual int32_t getNbBindings() const noexcept = 0;
    virtual int32_t getBindingIndex(const char *name) const noexcept = 0;
    SLOT(getBindingName)
    virtual bool bindingIsInput(int32_t binding) const noexcept = 0;
    virtual Dims getBindingDimensions(int32_t binding) const noexcept = 0;
    SLOT(getBindingDataType)
    SLOT(getMaxBatchSize)
    virtual int32_t getNbLayers() const noexcept = 0;
    SLOT(serialize)
    virtual Object<ContextInterface> *createExecutionContext(int32_t unused) noexcept = 0;
    SLOT(getLocation)
    SLOT(createExecutionContextWithoutDeviceMemory)
    virtual size_t getDeviceMemorySize() const noexcept = 0;
    SLOT(isRefittable)
    SLOT(getBindingBytesPerComponent)
    SLOT(getBindingComponentsPerElement)
    SLOT(getBindingFormat)
    SLOT(getBindingFormatDesc)
    SLOT(getBindingVectorizedDim)
    virtual const char *getName() const noexcept = 0;
    virtual int32_t getNbOptimizationProfiles() const noexcept = 0;
    SLOT(getProfileDimensions)
    virtual const int32_t *getProfileShapeValues(int32_t profile, int32_t input, Selector which) const noexcept = 0;
    virtual bool isShapeBinding(int32_t binding) const noexcept = 0;
    SLOT(isExecutionBinding)
    SLOT(getEngineCapability)
    SLOT(setErrorRecorder)
    SLOT(getErrorRecorder)
    virtual bool hasImplicitBatchDimension() const noexcept = 0;
    SLOT(getTacticSources)
    SLOT(getProfilingVerbosity)
    virtual Object<InspectorInterface> *createEngineInspector() const noexcept = 0;
    virtual Dims getTensorShape(const char *name) const noexcept = 0;
    virtual int32_t getTensorDataType(const char *name) const noexcept = 0;
    virtual int32_t getTensorLocation(const char *name) const noexcept = 0;
    virtual bool isShapeInferenceIO(const char *name) const noexcept = 0;
    virtual int32_t getTensorIOMode(const char *name) const noexcept = 0;
    SLOT(getTensorBytesPerComponent)
    virtual int32_t getTensorComponentsPerElement(const char *name) const noexcept = 0;
    virtual int32_t getTensorFormat(const char *name) const noexcept = 0;
    SLOT(getTensorFormatDesc)
    virtual int32_t getTensorVectorizedDim(const char *name) const noexcept = 0;
    virtual Dims getProfileShape(const char *name, int32_t profile, Selector which) const noexcept = 0;
    virtual int32_t getNbIOTensors() const noexcept = 0;
    virtual const char *getIOTensorName(int32_t index) const noexcept = 0;
    SLOT(getHardwareCompatibilityLevel)
    SLOT(getPImpl)
    SLOT(getNbAuxStreams)
};

struct ContextInterface : Root {
    SLOT(execute)
    SLOT(enqueue)
    SLOT(setDebugSync)
    SLOT(getDebugSync)
    SLOT(setProfiler)
    SLOT(getProfiler)
    virtual const Object<EngineInterface> &getEngine() const noexcept = 0;
    SLOT(setName)
    SLOT(getName)
    SLOT(setDeviceMemory)
    SLOT(getStrides)
    SLOT(setOptimizationProfile)
    virtual int32_t getOptimizationProfile() const noexcept = 0;
    SLOT(setBindingDimensions)
    SLOT(getBindingDimensions)
    SLOT(setInputShapeBinding)
    SLOT(getShapeBinding)
    SLOT(allInputDimensionsSpecified)
    SLOT(allInputShapesSpecified)
    SLOT(setErrorRecorder)
    SLOT(getErrorRecorder)
    SLOT(executeV2)
    SLOT(enqueueV2)
    virtual bool setOptimizationProfileAsync(int32_t profile, void *stream) noexcept = 0;
    SLOT(setEnqueueEmitsProfile)
    SLOT(getEnqueueEmitsProfile)
    SLOT(reportToProfiler)
    virtual bool setInputShape(const char *name, const Dims &dims) noexcept = 0;
    virtual Dims getTensorShape(const char *name) const noexcept = 0;
    SLOT(getTensorStrides)
    virtual bool setTensorAddress(const char *name, void *memory) noexcept = 0;
    virtual const void *getTensorAddress(const char *name) const noexcept = 0;
    SLOT(setInputTensorAddress)
    virtual int32_t inferShapes(int32_t most, const char **names) noexcept = 0;
    virtual bool setInputConsumedEvent(void *event) noexcept = 0;
    virtual void *getInputConsumedEvent() const noexcept = 0;
    SLOT(getOutputTensorAddress)
    virtual bool setOutputAllocator(const char *name, OutputAllocator *allocator) noexcept = 0;
    virtual OutputAllocator *getOutputAllocator(const char *name) noexcept = 0;
    SLOT(getMaxOutputSize)
    SLOT(setTemporaryStorageAllocator)
    SLOT(getTemporaryStorageAllocator)
    virtual bool enqueueV3(void *stream) noexcept = 0;
    SLOT(setPersistentCacheLimit)
    SLOT(getPersistentCacheLimit)
    SLOT(setNvtxVerbosity)
    SLOT(getNvtxVerbosity)
    SLOT(getPImpl)
    SLOT(setAuxStreams)
};

struct InspectorInterface : Root {
    SLOT(setExecutionContext)
    SLOT(getExecutionContext)
    virtual const char *getLayerInformation(int32_t layer, int32_t format) const noexcept = 0;
    virtual const char *getEngineInformation(int32_t format) const noexcept = 0;
    SLOT(setErrorRecorder)
    SLOT(getErrorRecorder)
    SLOT(getPImpl)
};
