// The probe from C++: estimates of an answer, token by token, and handles that close themselves.
//
//     probe PROBE.safetensors
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include "trail_rt.h"

namespace {

void check(TrailStatus status) {
    if (status != TRAIL_STATUS_OK) {
        throw std::runtime_error(trail_last_error());
    }
}

template <typename T, void (*close)(T *)>
struct Close {
    void operator()(T *handle) const { close(handle); }
};

using Probe = std::unique_ptr<TrailProbe, Close<TrailProbe, trail_probe_close>>;
using Tracker = std::unique_ptr<TrailTracker, Close<TrailTracker, trail_tracker_close>>;

Probe open_probe(const char *path) {
    TrailProbe *probe = nullptr;
    check(trail_probe_open(path, &probe));
    return Probe(probe);
}

Tracker open_tracker(const Probe &probe, std::size_t places) {
    TrailTracker *tracker = nullptr;
    check(trail_tracker_open(probe.get(), places, &tracker));
    return Tracker(tracker);
}

int run(const char *path) {
    const Probe probe = open_probe(path);
    const std::size_t width = trail_probe_width(probe.get());
    const std::size_t tokens = 100;
    std::vector<float> activations(tokens * width);
    for (std::size_t at = 0; at < activations.size(); ++at) {
        activations[at] = static_cast<float>(at * 37 % 101) / 50.0F - 1.0F;
    }
    std::vector<float> alone(tokens);
    check(trail_probe_predict(probe.get(), activations.data(), tokens, nullptr, alone.data()));
    const Tracker tracker = open_tracker(probe, 2);
    TrailEstimate last{};
    for (std::size_t token = 0; token < tokens; ++token) {
        const float *row = &activations[token * width];
        const auto generated = static_cast<std::uint32_t>(token + 1);
        check(trail_tracker_observe(tracker.get(), 1, generated, row, &last));
        if (!(last.p10 <= last.p50 && last.p50 <= last.p90 && alone[token] > 0.0F)) {
            return 1;
        }
    }
    std::printf("after %zu tokens %.1f more are expected, %.1f by the last one alone\n", tokens,
                static_cast<double>(last.remaining), static_cast<double>(alone.back()));
    try {
        check(trail_tracker_forget(tracker.get(), 2));
    } catch (const std::runtime_error &error) {
        std::printf("refused: %s\n", error.what());
        return 0;
    }
    return 1;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s PROBE\n", argv[0]);
        return 2;
    }
    try {
        return run(argv[1]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
