//! Models of the time of a step: a device that runs a model, as a value.

use std::str::FromStr;
use std::time::Duration;

use trail_scheduler::limits::BLOCK_TOKENS;
use trail_scheduler::{PrefillPace, SchedulerConfig, StepCost, StepWork};

/// Time of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepTime {
    /// Linear in the work, with coefficients fitted to measurements of a machine.
    Measured(StepCost),
    /// The larger of memory time and arithmetic time.
    Roofline(Roofline),
}

/// Roofline of a step: t = t0 + max(weight + kv_token x KV tokens read, token x new tokens).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Fixed time per step (launches, sampling, scheduling, all-reduce), seconds.
    pub t0_s: f64,
    /// Time to read the weights, seconds.
    pub weight_s: f64,
    /// Time to read the keys and values of one context token, seconds.
    pub kv_token_s: f64,
    /// Arithmetic time of one new token, seconds.
    pub token_s: f64,
}

impl StepTime {
    /// Time of a step of `work`, nanoseconds.
    pub fn ns(&self, work: &StepWork) -> u64 {
        match self {
            StepTime::Measured(cost) => cost.ns(work),
            StepTime::Roofline(Roofline { t0_s, weight_s, kv_token_s, token_s }) => {
                let memory_s = weight_s + kv_token_s * work.kv_tokens as f64;
                let rows = work.decode_rows + work.prefill_tokens;
                ((t0_s + memory_s.max(token_s * rows as f64)) * 1e9).round() as u64
            }
        }
    }

    /// The pace of prefill chunks for a bound on the gap between two tokens; zero for no bound.
    pub fn prefill_pace(&self, max_gap: Duration) -> PrefillPace {
        match self {
            StepTime::Measured(cost) => PrefillPace::of(max_gap, cost),
            StepTime::Roofline(roofline) => {
                PrefillPace::known(max_gap, roofline.token_s * 1e9, 0.0)
            }
        }
    }

    /// Time to recompute one prompt token, seconds.
    pub fn token_s(&self) -> f64 {
        match self {
            StepTime::Measured(cost) => cost.prefill_token * 1e-9,
            StepTime::Roofline(roofline) => roofline.token_s,
        }
    }
}

/// A device that runs a model.
#[derive(Clone, Debug, PartialEq)]
pub struct StepModel {
    /// Its name.
    pub name: String,
    /// Time of steps.
    pub time: StepTime,
    /// Tokens of KV that fit beside the weights; `None` if that is a choice.
    pub kv_tokens: Option<u64>,
    /// Time to copy one block of KV to the host or back, seconds.
    pub block_s: f64,
}

/// Data sheet of a device.
struct Device {
    name: &'static str,
    /// Memory, bytes.
    memory: f64,
    /// Memory bandwidth, bytes per second.
    bandwidth: f64,
    /// Dense bf16 arithmetic, operations per second.
    flops: f64,
    /// Measured rate of copies to the host, bytes per second.
    link: f64,
}

/// Sources: NVIDIA's data sheets. Links: PCIe 4.0 x16 at 25 GB/s, 5.0 at 50 GB/s.
const DEVICES: [Device; 3] = [
    Device { name: "a100-80g", memory: 80e9, bandwidth: 2.04e12, flops: 312e12, link: 25e9 },
    Device { name: "h200", memory: 141e9, bandwidth: 4.8e12, flops: 989e12, link: 50e9 },
    Device { name: "l4", memory: 24e9, bandwidth: 300e9, flops: 121e12, link: 25e9 },
];

/// Sizes of a model in bf16.
struct Shape {
    name: &'static str,
    /// Parameters.
    parameters: f64,
    layers: f64,
    /// Keys and values of one token, all layers, bytes.
    kv_bytes: f64,
}

/// Llama-3.2-1B, Llama-3-8B, Vicuna-13B (multi-head attention) and Llama-3-70B. KV: 2 x layers x KV
/// heads x head size x 2 bytes.
const SHAPES: [Shape; 4] = [
    Shape { name: "1b", parameters: 1.24e9, layers: 16.0, kv_bytes: 32_768.0 },
    Shape { name: "8b", parameters: 8.03e9, layers: 32.0, kv_bytes: 131_072.0 },
    Shape { name: "13b", parameters: 13.0e9, layers: 40.0, kv_bytes: 819_200.0 },
    Shape { name: "70b", parameters: 70.6e9, layers: 80.0, kv_bytes: 327_680.0 },
];

/// Share of the data sheet's arithmetic that matrix products reach.
const FLOPS_SHARE: f64 = 0.6;
/// Share of the memory that an engine uses (vLLM's default), and what activations take of it.
const MEMORY_SHARE: f64 = 0.9;
const ACTIVATION_BYTES: f64 = 4e9;
/// Assumed fixed time of a step: graph launch, sampling, scheduling.
const T0_S: f64 = 0.5e-3;
/// Assumed time of one all-reduce over NVLink, by two to eight devices; there are two in a layer.
const ALL_REDUCE_S: f64 = 10e-6;

impl StepModel {
    /// Names of the devices and of the model shapes.
    pub fn names() -> String {
        let devices = DEVICES.map(|device| device.name).join(", ");
        let shapes = SHAPES.map(|shape| shape.name).join(", ");
        format!("DEVICE[:MODEL][:tpN] with one of {devices} and one of {shapes}, N of 2, 4, 8")
    }

    /// The model of a machine with measured step costs. Transfers run at 25 GB/s, the rate of the
    /// engine's step clock.
    pub fn measured(name: &str, cost: StepCost, block_bytes: f64) -> StepModel {
        let (time, block_s) = (StepTime::Measured(cost), block_bytes / 25e9);
        StepModel { name: name.into(), time, kv_tokens: None, block_s }
    }

    fn roofline(device: &Device, shape: &Shape, devices: f64) -> Result<StepModel, String> {
        let weights = 2.0 * shape.parameters / devices;
        let kv_bytes = shape.kv_bytes / devices;
        let room = MEMORY_SHARE * device.memory - ACTIVATION_BYTES - weights;
        let suffix = if devices > 1.0 { format!(":tp{devices}") } else { String::new() };
        let name = format!("{}:{}{suffix}", device.name, shape.name);
        if room < kv_bytes * f64::from(BLOCK_TOKENS) {
            return Err(format!(
                "the weights of {name} do not fit: choose a larger device or more (:tp2, :tp4, :tp8)"
            ));
        }
        let reduce_s = if devices > 1.0 { 2.0 * shape.layers * ALL_REDUCE_S } else { 0.0 };
        let roofline = Roofline {
            t0_s: T0_S + reduce_s,
            weight_s: weights / device.bandwidth,
            kv_token_s: kv_bytes / device.bandwidth,
            token_s: 2.0 * shape.parameters / devices / (FLOPS_SHARE * device.flops),
        };
        Ok(StepModel {
            name,
            time: StepTime::Roofline(roofline),
            kv_tokens: Some((room / kv_bytes) as u64),
            block_s: f64::from(BLOCK_TOKENS) * kv_bytes / device.link,
        })
    }

    /// Sets one constant, by its name on the command line.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), String> {
        if !(0.0..1e12).contains(&value) {
            return Err(format!("{name} is {value}: give a number of at least 0"));
        }
        match (name, &mut self.time) {
            ("kv_tokens", _) => self.kv_tokens = Some(value as u64),
            ("block_s", _) => self.block_s = value,
            ("t0", StepTime::Roofline(roofline)) => roofline.t0_s = value,
            ("weight_s", StepTime::Roofline(roofline)) => roofline.weight_s = value,
            ("kv_token_s", StepTime::Roofline(roofline)) => roofline.kv_token_s = value,
            ("token_s", StepTime::Roofline(roofline)) => roofline.token_s = value,
            ("fixed", StepTime::Measured(cost)) => cost.fixed = value,
            ("decode_row", StepTime::Measured(cost)) => cost.decode_row = value,
            ("prefill_token", StepTime::Measured(cost)) => cost.prefill_token = value,
            ("context_token", StepTime::Measured(cost)) => cost.context_token = value,
            ("experts_read", StepTime::Measured(StepCost { experts: Some(experts), .. })) => {
                experts.read = value;
            }
            (_, time) => {
                let names = match time {
                    StepTime::Roofline(_) => "t0, weight_s, kv_token_s, token_s",
                    StepTime::Measured(_) => "fixed, decode_row, prefill_token, context_token",
                };
                return Err(format!(
                    "unknown constant '{name}': choose {names}, kv_tokens, block_s"
                ));
            }
        }
        Ok(())
    }

    /// Refuses a model by which time would stand still or overflow.
    pub fn check(&self) -> Result<(), String> {
        match &self.time {
            StepTime::Measured(cost) => cost.check(),
            StepTime::Roofline(roofline) => match roofline.t0_s + roofline.weight_s {
                least_s if least_s < 1e-9 => Err(format!(
                    "t0 and weight_s make a step of {least_s} s: give at least 1e-9 together"
                )),
                _ => Ok(()),
            },
        }
    }

    /// The default scheduler with this model's KV and costs; its blocks are at least those of one
    /// longest request.
    pub fn scheduler(&self) -> SchedulerConfig {
        let default = SchedulerConfig::default();
        let blocks = self.kv_tokens.map_or(u64::from(default.num_blocks), |tokens| {
            (tokens / u64::from(BLOCK_TOKENS)).clamp(1, u64::from(u32::MAX / BLOCK_TOKENS))
        });
        SchedulerConfig {
            num_blocks: blocks as u32,
            block_s: self.block_s,
            token_s: self.time.token_s(),
            ..default
        }
    }
}

impl FromStr for StepModel {
    type Err = String;

    fn from_str(text: &str) -> Result<StepModel, String> {
        let mut parts = text.split(':');
        let unknown = || format!("unknown step model '{text}': give {}", StepModel::names());
        let device = parts.next().and_then(|name| DEVICES.iter().find(|d| d.name == name));
        let device = device.ok_or_else(unknown)?;
        let mut rest: Vec<&str> = parts.collect();
        let parallel = match rest.last() {
            Some(&"tp2") => 2.0,
            Some(&"tp4") => 4.0,
            Some(&"tp8") => 8.0,
            _ => 1.0,
        };
        if parallel > 1.0 {
            rest.pop();
        }
        let shape = match rest[..] {
            [] => "8b",
            [shape] => shape,
            _ => return Err(unknown()),
        };
        let shape = SHAPES.iter().find(|known| known.name == shape).ok_or_else(unknown)?;
        StepModel::roofline(device, shape, parallel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> StepModel {
        name.parse().expect("a known model")
    }

    /// Goal: the figures that the literature notes give for Llama-3-8B. An A100 takes 7.9 ms to
    /// read the weights, 64 ns per context token and 86 us per prompt token, and holds about 400k
    /// tokens; an H200 3.3 ms, 27 ns, 27 us and 820k.
    #[test]
    fn presets_have_the_rooflines_of_their_devices() {
        for (name, want, kv_tokens) in [
            ("a100-80g", [7.9e-3, 64e-9, 86e-6], 400e3),
            ("h200:8b", [3.3e-3, 27e-9, 27e-6], 820e3),
        ] {
            let model = model(name);
            let StepTime::Roofline(got) = model.time else { panic!("{name}") };
            for (got, want) in [got.weight_s, got.kv_token_s, got.token_s].iter().zip(want) {
                assert!((got / want - 1.0).abs() < 0.03, "{name}: {got}, not {want}");
            }
            let got = model.kv_tokens.expect("a memory") as f64;
            assert!((got / kv_tokens - 1.0).abs() < 0.03, "{name}: {got} tokens");
        }
        assert!("a100-80g:70b".parse::<StepModel>().unwrap_err().contains("do not fit"));
        // 17.65 GB of weights a device leave 50.35 GB for 40,960 bytes a token.
        let kv_tokens = model("a100-80g:70b:tp8").kv_tokens.expect("a memory") as f64;
        assert!((kv_tokens / 1.229e6 - 1.0).abs() < 1e-3, "{kv_tokens}");
        let (one, two) = (model("a100-80g:8b"), model("a100-80g:8b:tp2"));
        let work = StepWork { decode_rows: 64, kv_tokens: 20_000, ..StepWork::default() };
        let ratio = one.time.ns(&work) as f64 / two.time.ns(&work) as f64;
        assert!((1.5..2.0).contains(&ratio), "{ratio}");
        assert!(two.kv_tokens > one.kv_tokens);
    }

    #[test]
    fn a_step_is_bound_by_memory_or_by_arithmetic() {
        let time = StepTime::Roofline(Roofline {
            t0_s: 1e-3,
            weight_s: 8e-3,
            kv_token_s: 1e-6,
            token_s: 1e-4,
        });
        let work =
            |rows, kv_tokens| StepWork { prefill_tokens: rows, kv_tokens, ..StepWork::default() };
        assert_eq!(time.ns(&work(1, 1000)), 10_000_000);
        assert_eq!(time.ns(&work(512, 1000)), 52_200_000);
    }

    #[test]
    fn constants_are_set_by_name_and_checked() {
        let mut model = model("l4:1b");
        model.set("t0", 0.0).expect("a constant");
        model.set("kv_tokens", 1600.0).expect("a constant");
        assert_eq!(model.scheduler().num_blocks, 100);
        assert!(model.set("fixed", 1.0).unwrap_err().contains("kv_token_s"));
        assert!(model.set("t0", f64::NAN).unwrap_err().contains("t0 is NaN"));
        assert!(model.set("t0", -1.0).unwrap_err().contains("t0 is -1"));
        model.set("weight_s", 0.0).expect("a constant");
        assert!(model.check().unwrap_err().contains("1e-9"));
        for name in ["", "b200", "h200:9b", "h200:8b:tp3", "h200:8b:8b:tp2"] {
            assert!(name.parse::<StepModel>().is_err(), "{name}");
        }
    }
}
