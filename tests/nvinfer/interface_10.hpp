// The interface of TensorRT 10.3 and 11 (interface.hpp).

#pragma once

struct Dims {
    int32_t count;
    int64_t sizes[8];
};

struct InterfaceInfo {
    const char *kind;
    int32_t major, minor;
};

// ---- implemented by the caller -------------------------------------------------------------------------------------------

struct Versioned {
    virtual int32_t language() const noexcept = 0;
    virtual InterfaceInfo info() const noexcept = 0;
    virtual ~Versioned() = default;
};

#if STAND_IN_MAJOR < 11
struct Logger {
    virtual void log(Severity severity, const char *text) noexcept = 0;
    virtual ~Logger() = default;
};
#else
struct Logger : Versioned {
    virtual void log(Severity severity, const char *text) noexcept = 0;
};
#endif

struct OutputAllocator : Versioned {
    virtual void *reallocateOutput(const char *name, void *memory, uint64_t size, uint64_t alignment) noexcept = 0;
    virtual void *reallocateOutputAsync(const char *name, void *memory, uint64_t size, uint64_t alignment, void *stream) = 0;
    virtual void notifyShape(const char *name, const Dims &dims) noexcept = 0;

    void *reallocate(const char *name, void *memory, uint64_t size, void *stream) {
        return reallocateOutputAsync(name, memory, size, 256, stream);
    }
};

// ---- implemented here ----------------------------------------------------------------------------------------------------

struct RuntimeInterface : Root {
    SLOT(getPImpl)
    virtual Object<EngineInterface> *deserializeCudaEngine(const void *plan, size_t size) noexcept = 0;
    SLOT_OF_10(deserializeFromReader)
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
    SLOT(getPluginRegistry)
    SLOT(setPluginRegistryParent)
    SLOT(loadRuntime)
    virtual void setEngineHostCodeAllowed(bool allowed) noexcept = 0;
    virtual bool getEngineHostCodeAllowed() const noexcept = 0;
    SLOT_OF_11(deserializeFromReaderV2)
};

struct EngineInterface : Root {
    SLOT(getPImpl)
    virtual int32_t getNbLayers() const noexcept = 0;
    SLOT(serialize)
    virtual Object<ContextInterface> *createExecutionContext(int32_t strategy) noexcept = 0;
    SLOT_OF_10(createExecutionContextWithoutDeviceMemory)
#if STAND_IN_MAJOR < 11
    virtual size_t getDeviceMemorySize() const noexcept = 0;
#endif
    SLOT(isRefittable)
    virtual const char *getName() const noexcept = 0;
    virtual int32_t getNbOptimizationProfiles() const noexcept = 0;
#if STAND_IN_MAJOR < 11
    virtual const int32_t *getProfileTensorValues(const char *name, int32_t profile, Selector which) const noexcept = 0;
#endif
    SLOT(getEngineCapability)
    SLOT(setErrorRecorder)
    SLOT(getErrorRecorder)
#if STAND_IN_MAJOR < 11
    virtual bool hasImplicitBatchDimension() const noexcept = 0;
#endif
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
    SLOT(getNbAuxStreams)
    SLOT(getTensorBytesPerComponentV2)
    virtual int32_t getTensorComponentsPerElementV2(const char *name, int32_t profile) const noexcept = 0;
    virtual int32_t getTensorFormatV2(const char *name, int32_t profile) const noexcept = 0;
    SLOT(getTensorFormatDescV2)
    virtual int32_t getTensorVectorizedDimV2(const char *name, int32_t profile) const noexcept = 0;
    SLOT(createSerializationConfig)
    SLOT(serializeWithConfig)
    SLOT_OF_10(getDeviceMemorySizeForProfile)
    SLOT(createRefitter)
    SLOT_OF_10(setWeightStreamingBudget)
    SLOT_OF_10(getWeightStreamingBudget)
    SLOT_OF_10(getMinimumWeightStreamingBudget)
    SLOT(getStreamableWeightsSize)
    SLOT(isDebugTensor)
    SLOT(setWeightStreamingBudgetV2)
    SLOT(getWeightStreamingBudgetV2)
    SLOT(getWeightStreamingAutomaticBudget)
    SLOT(getWeightStreamingScratchMemorySize)
    virtual int64_t getDeviceMemorySizeV2() const noexcept = 0;
    SLOT(getDeviceMemorySizeForProfileV2)
#if STAND_IN_MAJOR >= 11
    virtual const int64_t *getProfileTensorValuesV2(const char *name, int32_t profile, Selector which) const noexcept = 0;
#endif
    SLOT_OF_11(createExecutionContextWithRuntimeConfig)
    SLOT_OF_11(createRuntimeConfig)
    SLOT_OF_11(getEngineStat)
    SLOT_OF_11(getAliasedInputTensor)
};

struct ContextInterface : Root {
    SLOT(getPImpl)
    SLOT(setDebugSync)
    SLOT(getDebugSync)
    SLOT(setProfiler)
    SLOT(getProfiler)
    virtual const Object<EngineInterface> &getEngine() const noexcept = 0;
    SLOT(setName)
    SLOT(getName)
    SLOT(setDeviceMemory)
    virtual int32_t getOptimizationProfile() const noexcept = 0;
    SLOT(allInputDimensionsSpecified)
    SLOT_OF_10(allInputShapesSpecified)
    SLOT(setErrorRecorder)
    SLOT(getErrorRecorder)
    SLOT(executeV2)
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
    SLOT(setOutputTensorAddress)
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
    SLOT(setAuxStreams)
    SLOT(setDebugListener)
    SLOT(getDebugListener)
    SLOT(setTensorDebugState)
    SLOT(getDebugState)
    SLOT(setAllTensorsDebugState)
    SLOT(updateDeviceMemorySizeForShapes)
    SLOT(setDeviceMemoryV2)
    SLOT_OF_11(getRuntimeConfig)
    SLOT_OF_11(setUnfusedTensorsDebugState)
    SLOT_OF_11(getUnfusedTensorsDebugState)
    SLOT_OF_11(setCommunicator)
};

struct InspectorInterface : Root {
    SLOT(getPImpl)
    SLOT(setExecutionContext)
    SLOT(getExecutionContext)
    virtual const char *getLayerInformation(int32_t layer, int32_t format) const noexcept = 0;
    virtual const char *getEngineInformation(int32_t format) const noexcept = 0;
    SLOT(setErrorRecorder)
    SLOT(getErrorRecorder)
};
