// Plans of the stand-ins (tests/stand_ins/plans.py): a line that marks them, then a JSON document.

#pragma once

#include <cctype>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

const char *const MAGIC = "STAND-IN PLAN\n";

struct Json {
    enum { NONE, NUMBER, TEXT, LIST, OBJECT } kind = NONE;
    double number = 0;
    std::string text;
    std::vector<Json> items;
    std::vector<std::pair<std::string, Json>> members;

    const Json *find(const std::string &key) const {
        for (auto &one : members)
            if (one.first == key) return &one.second;
        return nullptr;
    }
    const Json &at(const std::string &key) const {
        if (auto found = find(key)) return *found;
        throw std::runtime_error("no member " + key);
    }
    int64_t whole(const std::string &key, int64_t otherwise) const {
        auto found = find(key);
        return found ? int64_t(found->number) : otherwise;
    }
    std::string string(const std::string &key, const std::string &otherwise) const {
        auto found = find(key);
        return found ? found->text : otherwise;
    }
    std::vector<int64_t> numbers() const {
        std::vector<int64_t> found;
        for (auto &one : items) found.push_back(int64_t(one.number));
        return found;
    }
};

// A parser of what Python's json.dumps writes, in ASCII and without escapes.
class JsonParser {
    const char *at, *end;

    char next() {
        while (at < end && std::isspace(static_cast<unsigned char>(*at))) at++;
        if (at >= end) throw std::runtime_error("unexpected end of archive");
        return *at;
    }
    bool take(char one) {
        if (next() != one) return false;
        at++;
        return true;
    }
    std::string word() {
        if (!take('"')) throw std::runtime_error("no text");
        auto start = at;
        while (at < end && *at != '"') at++;
        if (at >= end) throw std::runtime_error("unexpected end of archive");
        return std::string(start, at++);
    }
    Json list() {
        Json made;
        made.kind = Json::LIST;
        while (!take(']')) {
            made.items.push_back(value());
            take(',');
        }
        return made;
    }
    Json object() {
        Json made;
        made.kind = Json::OBJECT;
        while (!take('}')) {
            auto key = word();
            take(':');
            made.members.emplace_back(key, value());
            take(',');
        }
        return made;
    }
    Json scalar() {
        Json made;
        auto start = at;
        while (at < end && !std::strchr(",]} \n", *at)) at++;
        std::string text(start, at);
        made.kind = Json::NUMBER;
        made.number = text == "true" ? 1 : text == "false" || text == "null" ? 0 : std::stod(text);
        return made;
    }

public:
    JsonParser(const char *start, size_t size) : at(start), end(start + size) {}

    Json value() {
        switch (next()) {
        case '[': at++; return list();
        case '{': at++; return object();
        case '"': {
            Json made;
            made.kind = Json::TEXT;
            made.text = word();
            return made;
        }
        default: return scalar();
        }
    }
};

struct Tensor {
    std::string name;
    bool is_input, is_shape;
    int32_t type, format, vectorized_dim, components;
    std::vector<int64_t> shape;
};

// of TensorRT's DataType, in its order: name and bytes
struct Type {
    const char *name;
    int bytes;
};
const Type TYPES[] = {{"FLOAT", 4}, {"HALF", 2}, {"INT8", 1}, {"INT32", 4}, {"BOOL", 1},
                      {"UINT8", 1}, {"FP8", 1},  {"BF16", 2}, {"INT64", 8}};
const char *const FORMATS[] = {"LINEAR", "CHW2", "HWC8", "CHW4", "CHW16", "CHW32"};

struct Plan {
    std::string op, name, version, capability;
    bool version_compatible;
    int64_t device_memory, milliseconds;
    std::vector<Tensor> tensors;
    // of each profile: input -> its smallest, best, and largest shape or values
    std::vector<std::map<std::string, std::vector<std::vector<int64_t>>>> profiles;

    Plan(const char *content, size_t size) {
        auto document = JsonParser(content, size).value();
        op = document.at("op").text;
        name = document.string("name", "");
        version = document.at("version").text;
        capability = document.at("capability").text;
        version_compatible = document.whole("version_compatible", 0);
        device_memory = document.whole("device_memory", 0);
        milliseconds = document.whole("milliseconds", 0);
        for (auto &one : document.at("tensors").items) tensors.push_back(tensor(one));
        for (auto &profile : document.at("profiles").items) {
            profiles.emplace_back();
            for (auto &input : profile.members)
                for (auto &range : input.second.items) profiles.back()[input.first].push_back(range.numbers());
        }
    }

    const Tensor *find(const std::string &wanted) const {
        for (auto &one : tensors)
            if (one.name == wanted) return &one;
        return nullptr;
    }

private:
    static Tensor tensor(const Json &one) {
        Tensor made;
        made.name = one.at("name").text;
        made.is_input = one.at("mode").text == "INPUT";
        made.is_shape = one.whole("shape_tensor", 0);
        made.shape = one.at("shape").numbers();
        made.vectorized_dim = int32_t(one.whole("vectorized_dim", -1));
        made.components = int32_t(one.whole("components", -1));
        made.type = made.format = 0;
        for (size_t n = 0; n < sizeof TYPES / sizeof *TYPES; n++)
            if (one.at("dtype").text == TYPES[n].name) made.type = int32_t(n);
        for (size_t n = 0; n < sizeof FORMATS / sizeof *FORMATS; n++)
            if (one.string("format", "LINEAR") == FORMATS[n]) made.format = int32_t(n);
        return made;
    }
};
